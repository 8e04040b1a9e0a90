"""The parts of vLLM that the adapter uses are there, in each vLLM that can be found; nothing of it is imported.

Where vLLMs are found: `tests/harness/vllm_sources.py`.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.harness.vllm_sources import sources

FOUND = sources()
pytestmark = pytest.mark.skipif(not FOUND, reason="no vLLM is here")


@pytest.fixture(params=FOUND or [Path()], ids=lambda place: place.parent.name)
def vllm(request: pytest.FixtureRequest) -> Path:
    place: Path = request.param
    return place


@cache
def module(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def named(path: Path, name: str) -> ast.ClassDef:
    found = [node for node in module(path).body if isinstance(node, ast.ClassDef) and node.name == name]
    assert found, f"{path.name} has no class {name}"
    return found[0]


def fields(path: Path, name: str) -> set[str]:
    """The annotated fields of a class, and the attributes that its methods set."""
    found: set[str] = set()
    for node in ast.walk(named(path, name)):
        if isinstance(node, ast.AnnAssign):
            target = node.target
            found.add(target.id if isinstance(target, ast.Name) else ast.unparse(target).removeprefix("self."))
        elif isinstance(node, ast.Assign):
            found |= {ast.unparse(target).removeprefix("self.") for target in node.targets}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return found


def arguments(path: Path, kind: str, method: str) -> list[str]:
    for node in named(path, kind).body:
        if isinstance(node, ast.FunctionDef) and node.name == method:
            return [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
    raise AssertionError(f"{kind} has no method {method}")


def test_the_proposer_is_made_from_the_configuration(vllm: Path) -> None:
    text = (vllm / "v1/spec_decode/custom_class_proposer.py").read_text(encoding="utf-8")
    assert "instance = user_class(vllm_config)" in text


def test_how_the_runner_calls_it(vllm: Path) -> None:
    """Positional: sampled tokens, lengths, tokens; `slot_mappings` by name."""
    tree = module(vllm / "v1/worker/gpu_model_runner.py")
    branches = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "spec_config.method == 'custom_class'"
    ]
    assert len(branches) == 1
    (call,) = (
        node
        for part in branches[0].body
        for node in ast.walk(part)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "propose"
    )
    assert [ast.unparse(each) for each in call.args] == [
        "sampled_token_ids",
        "self.input_batch.num_tokens_no_spec",
        "self.input_batch.token_ids_cpu",
    ]
    assert [each.arg for each in call.keywords] == ["slot_mappings"]


def test_what_a_step_says(vllm: Path) -> None:
    output = vllm / "v1/core/sched/output.py"
    used = {"finished_req_ids", "scheduled_spec_decode_tokens", "scheduled_new_reqs", "total_num_scheduled_tokens"}
    assert used <= fields(output, "SchedulerOutput")
    new = {"req_id", "prompt_token_ids", "prompt_embeds", "sampling_params"}
    assert new <= fields(output, "NewRequestData")


def test_what_the_runner_holds(vllm: Path) -> None:
    runner = fields(vllm / "v1/worker/gpu_model_runner.py", "GPUModelRunner")
    assert {"input_batch", "requests", "drafter"} <= runner
    state = fields(vllm / "v1/worker/gpu_input_batch.py", "CachedRequestState")
    assert {"sampling_params", "prompt_embeds", "num_prompt_tokens"} <= state
    batch = fields(vllm / "v1/worker/gpu_input_batch.py", "InputBatch")
    assert {"req_ids", "num_tokens_no_spec", "token_ids_cpu"} <= batch


def test_the_workers(vllm: Path) -> None:
    named(vllm / "v1/worker/cpu_worker.py", "CPUWorker")
    worker = vllm / "v1/worker/gpu_worker.py"
    assert arguments(worker, "Worker", "load_model")[0] == "self"
    assert arguments(worker, "Worker", "execute_model") == ["self", "scheduler_output"]
    assert arguments(worker, "Worker", "shutdown") == ["self"]
    assert "def get_tp_group(" in (vllm / "distributed/parallel_state.py").read_text(encoding="utf-8")


def test_the_method_is_known_and_takes_the_first_runner(vllm: Path) -> None:
    assert '"custom_class"' in (vllm / "config/speculative.py").read_text(encoding="utf-8")
    config = (vllm / "config/vllm.py").read_text(encoding="utf-8")
    unsupported = config.partition("def _get_v2_model_runner_unsupported_features")[2].partition("return unsupported")[
        0
    ]
    assert '"custom_class"' in unsupported, "V2 would be taken, and would not call the proposer"
