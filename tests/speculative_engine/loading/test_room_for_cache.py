"""A KV cache that does not fit into memory is refused before it is made."""

import pytest

from drafter_service.models.loaded_model import NoMemoryError
from drafter_service.models.loading import load_drafter
from drafter_service.settings import DrafterSettings
from service_runtime.process.startup_error import StartupError
from speculative_engine.loading import room_for_cache
from speculative_engine.loading.local_model import LocalModelOptions, local_model_drafter
from speculative_engine.loading.self_test import run_self_test
from speculative_engine.model.packed_model import ModelLoadError, PackedModel
from speculative_engine.model.reading import read_model
from tests.harness.models.tiny_checkpoint import tiny_checkpoint
from verifier_service.settings import VerifierSettings
from verifier_service.target import load_target

WORDS = (
    r"its KV cache takes \d+\.\d GiB, 10000000 slots of 0\.1 KiB, but \d+\.\d GiB of memory are free: use fewer slots "
    r"\(--kv-slots\), or smaller ones \(--kv-dtype q8_0\)$"
)
SLOTS = 10_000_000


@pytest.fixture
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_checkpoint(tmp_path_factory))


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_for_cache, "free_memory", lambda: 1 << 30)


def test_a_slot_is_measured(checkpoint: str) -> None:
    model = PackedModel.load(checkpoint, slots=100, dtype="float32")
    # keys and values of 2 heads of 8 elements, in 2 layers
    assert run_self_test(model).slot_bytes == 2 * 2 * 8 * 4 * 2
    assert model.cache.bytes == 0


def test_each_program_says_so(checkpoint: str) -> None:
    with pytest.raises(NoMemoryError, match=WORDS):
        load_drafter(DrafterSettings(model=checkpoint, kv_slots=SLOTS, dtype="bfloat16"))
    with pytest.raises(StartupError, match=WORDS):
        load_target(VerifierSettings(model=checkpoint, kv_slots=SLOTS, dtype="bfloat16"))
    target = PackedModel.load(checkpoint, slots=SLOTS)
    with pytest.raises(ModelLoadError, match=r"use fewer slots \(the target's --kv-slots\)"):
        local_model_drafter(LocalModelOptions(checkpoint), target)


def test_weights_that_do_not_fit(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_model, "free_memory", lambda: 1000)
    with pytest.raises(ModelLoadError, match=r"parameters take 0\.0 GiB in float32, but 0\.0 GiB of memory are free"):
        PackedModel.load(checkpoint, slots=100, dtype="float32")
    with pytest.raises(NoMemoryError, match="parameters take"):
        load_drafter(DrafterSettings(model=checkpoint, kv_slots=100))
