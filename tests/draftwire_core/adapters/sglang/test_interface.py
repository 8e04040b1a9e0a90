"""The parts of SGLang that the adapter uses are there, in each SGLang that can be found; nothing of it is imported.

Sources are those of an installed SGLang, and of the directories in DRAFTWIRE_TEST_SGLANG, separated by colons, into
which wheels were unpacked (`unzip sglang-0.5.23*.whl 'sglang/srt/*' 'sglang/kernels/*' -d DIR`).
"""

from __future__ import annotations

import ast
import importlib.util
import os
from functools import cache
from pathlib import Path

import pytest


def sources() -> list[Path]:
    places = [Path(each) / "sglang" for each in os.environ.get("DRAFTWIRE_TEST_SGLANG", "").split(":") if each]
    installed = importlib.util.find_spec("sglang")
    if installed is not None and installed.origin is not None:
        places.append(Path(installed.origin).parent)
    return places


FOUND = sources()
pytestmark = pytest.mark.skipif(not FOUND, reason="no SGLang is here")


@pytest.fixture(params=FOUND or [Path()], ids=lambda place: place.parent.name)
def srt(request: pytest.FixtureRequest) -> Path:
    place: Path = request.param
    return place / "srt"


@cache
def module(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def named(path: Path, name: str) -> ast.ClassDef:
    found = [node for node in module(path).body if isinstance(node, ast.ClassDef) and node.name == name]
    assert found, f"{path.name} has no class {name}"
    return found[0]


def methods(path: Path, name: str) -> dict[str, list[str]]:
    """The arguments of each method of a class."""
    return {
        node.name: [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
        for node in named(path, name).body
        if isinstance(node, ast.FunctionDef)
    }


def method_text(path: Path, kind: str, name: str) -> str:
    [found] = [node for node in named(path, kind).body if isinstance(node, ast.FunctionDef) and node.name == name]
    return ast.unparse(found)


def attributes_set(path: Path, name: str) -> set[str]:
    targets = (node.targets if isinstance(node, ast.Assign) else [node.target]
               for node in ast.walk(named(path, name)) if isinstance(node, ast.Assign | ast.AnnAssign))  # fmt: skip
    return {ast.unparse(each).removeprefix("self.") for group in targets for each in group}


def test_an_algorithm_is_registered_by_a_plugin(srt: Path) -> None:
    info = srt / "speculative/spec_info.py"
    assert methods(info, "SpeculativeAlgorithm")["register"] == [
        "cls", "name", "supports_overlap", "validate_server_args", "spec_class",
    ]  # fmt: skip
    assert '"sglang.srt.plugins"' in (srt / "plugins/__init__.py").read_text(encoding="utf-8")
    for process in ("managers/scheduler.py", "entrypoints/engine.py", "managers/data_parallel_controller.py"):
        assert "load_plugins()" in (srt / process).read_text(encoding="utf-8")


def test_the_algorithm_answers_all_that_it_is_asked(srt: Path) -> None:
    """SGLang asks a registered algorithm whatever it asks its own; what CustomSpecAlgo lacks is the adapter's."""
    asked = set(methods(srt / "speculative/spec_info.py", "SpeculativeAlgorithm"))
    base = set(methods(srt / "speculative/spec_registry.py", "CustomSpecAlgo"))
    ours = set(
        methods(Path(__file__).parents[4] / "draftwire_core/adapters/sglang/algorithm.py", "RemoteDraftAlgorithm")
    )
    assert asked - base - ours <= {"from_string", "register", "get_platform_worker_cls"}
    assert "handle_server_args" in base
    text = method_text(srt / "speculative/spec_info.py", "SpeculativeAlgorithm", "create_future_map")
    assert "FutureMap(device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay)" in text
    hook = (srt / "arg_groups/speculative_hook.py").read_text(encoding="utf-8")
    assert "algo.handle_server_args" in hook


def test_what_is_completed_is_what_ngram_completes(srt: Path) -> None:
    hook = srt / "arg_groups/speculative_hook.py"
    [ngram] = [node for node in module(hook).body
               if isinstance(node, ast.FunctionDef) and node.name == "_handle_ngram"]  # fmt: skip
    written = {
        each.arg
        for node in ast.walk(ngram)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "declare_resolution"
        for each in node.keywords
    }
    assert written == {
        "max_running_requests", "enable_mixed_chunk", "speculative_eagle_topk", "speculative_num_draft_tokens",
        "speculative_num_steps",
    }  # fmt: skip
    fields = (srt / "arg_groups/fields/spec.py").read_text(encoding="utf-8")
    assert "speculative_ngram_capacity:" in fields


def test_the_worker(srt: Path) -> None:
    worker = srt / "speculative/ngram_worker.py"
    found = methods(worker, "NGRAMWorker")
    assert found["__init__"] == ["self", "server_args", "gpu_id", "nccl_port", "target_worker"]
    assert found["forward_batch_generation"][:2] == ["self", "batch"]
    assert found["_prepare_draft_tokens"] == ["self", "batch"]
    assert found["_update_ngram_corpus"] == ["self", "batch"]
    assert {"draft_token_num", "device", "max_batch_size", "_target_worker"} <= attributes_set(worker, "NGRAMWorker")
    base = methods(srt / "speculative/base_spec_worker.py", "BaseSpecWorker")
    assert base["note_request_finished"] == ["self", "rid", "natural_stop"]
    assert "target_worker" in base


def test_how_drafts_are_used(srt: Path) -> None:
    worker = srt / "speculative/ngram_worker.py"
    text = method_text(worker, "NGRAMWorker", "_prepare_for_speculative_decoding")
    assert "req_drafts, mask = self._prepare_draft_tokens(batch)" in text
    assert "tree_mask.copy_(torch.from_numpy(mask), non_blocking=True)" in text
    assert "draft_tokens.copy_(torch.from_numpy(req_drafts), non_blocking=True)" in text
    own = method_text(worker, "NGRAMWorker", "_prepare_draft_tokens")
    for used in (
        "self.enable_overlap and (not batch.grammar_needs_sync())",
        "batch.spec_info.accept_tokens",
        "batch.spec_info.accept_lens",
        "i * stride:i * stride + self.prev_accept_lens[i]",
        "req.origin_input_ids_unpadded",
        "req.output_ids",
    ):
        assert used in own, used


def test_requests_and_the_target(srt: Path) -> None:
    request = attributes_set(srt / "managers/schedule_batch.py", "Req")
    assert {"rid", "origin_input_ids_unpadded", "output_ids", "input_embeds", "sampling_params"} <= request
    assert "max_new_tokens" in (srt / "sampling/sampling_params.py").read_text(encoding="utf-8")
    model = attributes_set(srt / "configs/model_config.py", "ModelConfig")
    assert {"model_path", "hf_config", "context_len", "dtype"} <= model
    assert "vocab_size" in (srt / "configs/model_config.py").read_text(encoding="utf-8")
    group = attributes_set(srt / "distributed/parallel_state.py", "GroupCoordinator")
    assert {"ranks", "rank_in_group", "world_size", "cpu_group"} <= group
