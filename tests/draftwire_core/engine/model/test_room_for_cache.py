"""A KV cache that does not fit into memory is refused before it is made."""

from collections.abc import Callable
from pathlib import Path

import pytest

from drafter_service.models.loaded_model import NoMemoryError
from drafter_service.models.loading import load_drafter
from drafter_service.settings import DrafterSettings
from draftwire_core.engine.loading.methods import LocalModelOptions, local_model_drafter
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model import room_for_cache
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.engine.model.reading import read_model
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.process.startup_error import StartupError
from tests.harness.engine.engines import tiny_model
from tests.harness.models.dflash_checkpoints import write_dflash
from tests.harness.models.eagle_checkpoints import write_eagle, write_parallel
from tests.harness.models.mtp_checkpoints import write_with_mtp
from tests.harness.models.tiny_checkpoint import tiny_checkpoint
from verifier_service.reading.local_address import make_drafter
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
    with pytest.raises(ModelLoadError, match=r"use fewer slots \(kv_slots, or the target's --kv-slots\)"):
        local_model_drafter(LocalModelOptions(checkpoint, kv_slots=SLOTS), target)


def test_weights_that_do_not_fit(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_model, "free_memory", lambda: 1000)
    with pytest.raises(ModelLoadError, match=r"parameters take 0\.0 GiB in float32, but 0\.0 GiB of memory are free"):
        PackedModel.load(checkpoint, slots=100, dtype="float32")
    with pytest.raises(NoMemoryError, match="parameters take"):
        load_drafter(DrafterSettings(model=checkpoint, kv_slots=100))


NETWORKS: dict[str, Callable[[Path], Path]] = {
    "eagle3": write_eagle,
    "eagle3, parallel": write_parallel,
    "dflash": write_dflash,
    "mtp": lambda directory: write_with_mtp("glm", directory),
}


def check_slots_of_its_own(kind: str, tmp_path: Path) -> None:
    directory = NETWORKS[kind](tmp_path)
    settings = DrafterSettings(model=str(directory), kv_slots=100_000_000, dtype="float32", mtp=kind == "mtp")
    if kind == "dflash":  # its embedding is the target's
        tiny_model("Llama").save_pretrained(tmp_path / "target")
        settings = settings.model_copy(update={"target": str(tmp_path / "target")})
    words = r"model .*: its KV cache takes \d+\.\d GiB, 1000000\d\d slots of \d+\.\d KiB, .*: use fewer slots "
    with pytest.raises(NoMemoryError, match=rf"{words}\(--kv-slots\)$"):
        load_drafter(settings)
    load_drafter(settings.model_copy(update={"kv_slots": 1000}))
    if kind == "mtp":
        target, address = PackedModel.load(str(directory), slots=1000), "local:mtp"
    else:
        target, address = PackedModel(tiny_model("Llama"), 1000), f"local:{kind.partition(',')[0]}?model={directory}"
    make_drafter(address, target, hub=False)
    target.resize(100_000_000)
    with pytest.raises(ServiceError, match=rf"{words}\(the target's --kv-slots\)$"):
        make_drafter(address, target, hub=False)


@pytest.mark.parametrize("kind", [kind for kind in NETWORKS if kind != "mtp"])
def test_networks_that_read_features(kind: str, tmp_path: Path) -> None:
    """They have slots of their own."""
    check_slots_of_its_own(kind, tmp_path)


@pytest.mark.slow
class TestLayersOfTheTarget:
    """Their library alone may take seconds to import."""

    def test_they_have_slots_of_their_own(self, tmp_path: Path) -> None:
        check_slots_of_its_own("mtp", tmp_path)
