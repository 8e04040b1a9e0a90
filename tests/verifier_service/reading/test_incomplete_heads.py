"""Heads whose files lack a tensor, or have one of another name or shape, are refused by its name."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwire_core.engine.drafters.dflash.dflash import DflashOptions, dflash_drafter
from draftwire_core.engine.drafters.eagle.eagle3 import EagleOptions, eagle3_drafter
from draftwire_core.engine.drafters.medusa import MedusaOptions, medusa_drafter
from draftwire_core.engine.drafters.medusa_heads import MedusaHeads
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from tests.harness.engine.engines import VOCABULARY, packed, tiny_model
from tests.harness.models.dflash_checkpoints import write_dflash
from tests.harness.models.eagle_checkpoints import eagle_config, write_eagle

LENT = {"embed_tokens.weight", "lm_head.weight"}
"""What heads may leave to their target."""


@pytest.fixture(scope="module")
def target() -> PackedModel:
    return packed(tiny_model("Llama"), 100)


def check_each(file: Path, make: Callable[[], object]) -> None:
    whole = load_file(file)
    make()
    for name, tensor in whole.items():
        if name not in LENT:
            save_file({each: whole[each] for each in whole if each != name}, file)
            with pytest.raises(ModelLoadError, match="is missing"):
                make()
        save_file({(f"{each}_old" if each == name else each): whole[each] for each in whole}, file)
        with pytest.raises(ModelLoadError, match=r"is missing|is not supported"):
            make()
        save_file(whole | {name: torch.cat([tensor, tensor])}, file)
        with pytest.raises(ModelLoadError, match="shape"):
            make()
    save_file(whole | {"layers.7.mlp.up_proj.weight": torch.ones(2)}, file)
    with pytest.raises(ModelLoadError, match="is not supported"):
        make()


FLAGS: list[dict[str, bool]] = [{}, {"norm_before_fc": True}, {"fc_norm": True}]
KINDS = ("llama", "qwen3")


@pytest.mark.parametrize(("kind", "flags"), [(KINDS[place % 2], flags) for place, flags in enumerate(FLAGS)])
def test_eagle(target: PackedModel, tmp_path: Path, kind: str, flags: dict[str, bool]) -> None:
    check_eagle(target, tmp_path, kind, flags)


@pytest.mark.slow
class TestEveryCombination:
    @pytest.mark.parametrize("flags", FLAGS)
    @pytest.mark.parametrize("kind", KINDS)
    def test_eagle(self, target: PackedModel, tmp_path: Path, kind: str, flags: dict[str, bool]) -> None:
        check_eagle(target, tmp_path, kind, flags)


def check_eagle(target: PackedModel, tmp_path: Path, kind: str, flags: dict[str, bool]) -> None:
    directory = write_eagle(tmp_path, eagle_config(kind, **flags))
    check_each(directory / "model.safetensors", lambda: eagle3_drafter(EagleOptions(str(directory)), target))


def test_dflash(target: PackedModel, tmp_path: Path) -> None:
    directory = write_dflash(tmp_path)
    check_each(directory / "model.safetensors", lambda: dflash_drafter(DflashOptions(str(directory)), target))


def test_medusa(target: PackedModel, tmp_path: Path) -> None:
    MedusaHeads(3, 2, 64, VOCABULARY).save(tmp_path, "target", torch.float32)
    file = tmp_path / "medusa_lm_head.safetensors"
    check_each(file, lambda: medusa_drafter(MedusaOptions(str(tmp_path)), target))
