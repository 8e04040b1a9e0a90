"""Weights of a checkpoint are read straight to their device."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.integrations import peft
from transformers.models.auto import auto_factory

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.reading import read_model as module
from draftwire_core.engine.model.reading.model_to_train import model_to_train
from draftwire_core.engine.model.reading.read_model import ModelLoadError, read_model, resolve_dtype, usable_device
from tests.harness.checkout import MODELS
from tests.harness.models.tiny_checkpoint import write_checkpoint


@pytest.mark.parametrize(
    ("place", "accelerate", "expected"),
    [
        ("cuda:0", True, {"": torch.device("cuda:0")}),
        ("cuda:0", False, None),  # transformers refuses a device map without the package
        ("cpu", True, None),
    ],
)
def test_weights_go_straight_to_a_gpu(
    place: str, accelerate: bool, expected: dict[str, torch.device] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    from_pretrained = AutoModelForCausalLM.from_pretrained

    def read(directory: str, **options: Any) -> PreTrainedModel:
        asked.append(options)
        return from_pretrained(directory, **options | {"device_map": None})

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", read)
    monkeypatch.setattr(module, "is_accelerate_available", lambda: accelerate)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(PreTrainedModel, "to", lambda self, device: self)  # there is no GPU here
    read_model(Checkpoint.find(str(MODELS / "draft")), torch.device(place), dtype="bfloat16")
    assert [options["device_map"] for options in asked] == [expected]


def test_an_adapter_next_to_a_merged_model_is_not_applied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As transformers does if the package peft is installed."""
    write_checkpoint(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "lab/base"}')
    applied: list[object] = []
    monkeypatch.setattr(PreTrainedModel, "load_adapter", lambda self, *args, **options: applied.append(args))
    for place in (auto_factory, peft):
        monkeypatch.setattr(place, "is_peft_available", lambda: True)
    checkpoint = Checkpoint.find(str(tmp_path))
    read_model(checkpoint, torch.device("cpu"), dtype="float32")
    model_to_train(checkpoint, torch.float32)
    assert not applied


@pytest.mark.parametrize(("capability", "dtype"), [((7, 5), torch.float32), ((8, 0), torch.bfloat16)])
def test_auto_is_bfloat16_where_a_gpu_computes_in_it(
    capability: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert resolve_dtype("auto", torch.device("cuda")) == dtype
    assert resolve_dtype("float16", torch.device("cuda")) == torch.float16


@pytest.mark.parametrize("reason", ["", "CUDA initialization: The NVIDIA driver on your system\nis too old (12020)."])
def test_why_a_gpu_cannot_be_used(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch only warns, of a driver that is too old among others."""

    def available() -> bool:
        if reason:
            warnings.warn(reason, stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", available)
    with pytest.raises(ModelLoadError) as caught:
        usable_device("cuda")
    expected = "device cuda: torch sees no GPU that it can use"
    assert str(caught.value) == expected + (reason and f": {reason}").replace("\n", " ")


@pytest.mark.parametrize(
    ("said", "ends"), [(2, (2,)), ([2, 199], (2, 199)), (-1, ()), ([-1, 200, 2], (2,)), (None, (1,)), ("2", (2,))]
)
def test_tokens_that_end_a_text_are_in_the_vocabulary(said: object, ends: tuple[int, ...], tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": said}))
    assert PackedModel.load(str(tmp_path), slots=64).eos_token_ids == ends


@pytest.mark.parametrize("content", ["", '{"eos_token_id": [1, 2', "[1]", '\ufeff{"eos_token_id": 2}'])
def test_a_damaged_generation_config_is_not_passed_over(content: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "generation_config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelLoadError, match=r"generation_config\.json (cannot be read|is not an object)"):
        PackedModel.load(str(tmp_path), slots=64)
