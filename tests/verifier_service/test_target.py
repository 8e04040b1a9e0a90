"""Loading the target model with a KV cache as large as the memory allows; a CPU's memory stands in for a GPU's."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwire_core.engine.loading import slots_that_fit
from draftwire_core.engine.loading.self_test import SelfTestReport, run_self_test
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.runtime.process.settings import load_settings
from draftwire_core.runtime.process.startup_error import StartupError
from tests.harness.models.tiny_checkpoint import write_checkpoint
from verifier_service import target as module
from verifier_service.settings import VerifierSettings
from verifier_service.target import load_part, load_target

SLOT = 2 * 2 * 2 * 8 * 4
"""Bytes of a slot: layers, keys and values, heads, dimension, float32."""


@pytest.fixture
def settings(tmp_path: Path) -> VerifierSettings:
    valid = VerifierSettings(model=str(write_checkpoint(tmp_path)), dtype="float32", max_sequences=4, threads=1)
    return valid.model_copy(update={"kv_slots": 0})  # which needs a GPU


def test_the_kv_cache_takes_the_memory_that_is_left(
    settings: VerifierSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = 1 << 30
    kept = total // 10  # beyond --gpu-memory-utilization

    def memory(_: object) -> tuple[int, int]:
        return kept + slots_that_fit._SPARE_BYTES + 301 * SLOT, total

    monkeypatch.setattr(slots_that_fit, "memory", memory)
    target = load_target(settings)
    assert target.engine.model.pool.capacity in (300, 301)  # a tenth of the memory is no whole number of bytes
    assert target.engine.limits.max_step_rows == 256


@pytest.mark.parametrize(("slots", "fits"), [(256, False), (257, False), (258, True), (0, True)])
def test_a_request_must_fit_next_to_its_tree(slots: int, fits: bool, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "m", "--kv-slots", str(slots), "--max-tree-nodes", "256"]
    if fits:
        assert load_settings(VerifierSettings, [*flags, "--device", "cuda"]).kv_slots == slots
        return
    with pytest.raises(SystemExit):
        load_settings(VerifierSettings, flags)
    assert "--kv-slots: must be at least 258 with --max-tree-nodes 256, so that" in capsys.readouterr().err


def test_a_cache_that_would_hold_no_request_is_refused(
    settings: VerifierSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = 1 << 30
    kept = total // 10
    free = kept + slots_that_fit._SPARE_BYTES + 257 * SLOT
    monkeypatch.setattr(slots_that_fit, "memory", lambda _: (free, total))
    with pytest.raises(StartupError, match=r"258 KV slots do not fit: .* \(--gpu-memory-utilization\)"):
        load_target(settings.model_copy(update={"max_tree_nodes": 256}))


def test_a_chat_template_of_a_file(settings: VerifierSettings, tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{% for each in messages %}{{ each.content }}{% endfor %}")
    valid = settings.model_copy(update={"kv_slots": 300, "chat_template": str(file)})
    assert load_target(valid).tokenizer.has_chat_template
    with pytest.raises(StartupError, match=r"chat template .*missing: cannot be read"):
        load_target(valid.model_copy(update={"chat_template": str(tmp_path / "missing")}))


def test_a_path_stays_private_however_it_is_written(
    settings: VerifierSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    valid = settings.model_copy(update={"kv_slots": 300, "model": f"~/{tmp_path.name}"})
    assert load_target(valid).info.model_id == tmp_path.name


@pytest.mark.parametrize("named", [(), (77,)])
def test_a_model_that_names_no_end_or_its_base_models_has_its_tokenizers(
    settings: VerifierSettings, named: tuple[int, ...]
) -> None:
    valid = settings.model_copy(update={"kv_slots": 300})
    directory = Path(settings.model)
    (directory / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"eos_token_id": list(named) or None}))
    target = load_target(valid)
    assert target.engine.model.eos_token_ids == named
    assert tuple(target.info.eos_token_ids) == (*named, *target.tokenizer.eos_token_ids) != named


def test_no_more_slots_than_requests_can_use(settings: VerifierSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_that_fit, "memory", lambda _: (1 << 40, 1 << 40))
    target = load_target(settings)
    most = settings.max_sequences * (target.info.context_length + settings.max_tree_nodes)
    assert target.engine.model.pool.capacity == most


def test_a_gpu_without_kernels_for_a_model_is_refused_unless_allowed(
    settings: VerifierSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = PackedModel.load

    def loaded(*given: Any, **about: Any) -> PackedModel:
        model = load(*given, **about)
        model.device = torch.device("cuda:0")
        return model

    monkeypatch.setattr(PackedModel, "load", loaded)
    with pytest.raises(StartupError, match=r"the GPU's kernels cannot run it: .*\(--allow-slow-layers serves"):
        load_part(settings, None)
    assert load_part(settings.model_copy(update={"allow_slow_layers": True}), None).steps is None


def test_a_model_that_is_not_batch_invariant_may_be_refused(
    settings: VerifierSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tested(model: PackedModel) -> SelfTestReport:
        report = run_self_test(model)
        model.device = torch.device("cuda:0")
        return replace(report, bit_exact=False)

    monkeypatch.setattr(module, "run_self_test", tested)
    with pytest.raises(StartupError, match="not batch-invariant on cuda:0, as --reproducible requires"):
        load_target(settings.model_copy(update={"reproducible": True}))
