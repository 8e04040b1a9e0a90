"""A checkpoint that lacks tensors of its model, or has others, is refused by their names."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.model.reading.read_model import read_model
from tests.harness.models.tiny_checkpoint import write_checkpoint

Tensors = dict[str, Tensor]
UP = "model.layers.0.mlp.up_proj.weight"
HEAD = "lm_head.weight"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path)


def change(checkpoint: Path, tensors: Callable[[Tensors], Tensors], **config: object) -> None:
    file = checkpoint / "model.safetensors"
    save_file(tensors(load_file(file)), file, {"format": "pt"})
    described = checkpoint / "config.json"
    described.write_text(json.dumps(json.loads(described.read_text()) | config))


def same(tensors: Tensors) -> Tensors:
    return tensors


def read(checkpoint: Path, layers: int | None = None) -> None:
    read_model(Checkpoint.find(str(checkpoint)), torch.device("cpu"), dtype="float32", layers=layers)


def test_each_tensor_is_needed(checkpoint: Path) -> None:
    whole = load_file(checkpoint / "model.safetensors")
    assert len(whole) > 10
    for name in whole:
        change(checkpoint, lambda _, name=name: {each: whole[each] for each in whole if each != name})
        with pytest.raises(ModelLoadError, match=f"the checkpoint lacks the tensor {name}$"):
            read(checkpoint)


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [
        (lambda found: {f"module.{name}": each for name, each in found.items()}, {}, r"lacks \d+ tensors \(lm_head"),
        (same, {"num_hidden_layers": 4}, r"lacks 18 tensors \(model.layers.2.input_layernorm.weight, .*, \.\.\.\)$"),
        (same, {"num_hidden_layers": 1}, r"has 9 tensors \(model.layers.1.*\), which its configuration has no place"),
        (lambda found: found | {UP.replace("weight", "bias"): torch.zeros(64)}, {}, "has the tensor .*up_proj.bias"),
        (
            lambda found: {name.replace("up_proj", "up"): each for name, each in found.items()},
            {},
            r"lacks 2 tensors .* and has 2 tensors",
        ),
        (lambda found: {name: each for name, each in found.items() if "embed" not in name}, {}, "lacks .*embed_tokens"),
    ],
)
def test_what_does_not_fit_is_named(
    checkpoint: Path, tensors: Callable[[Tensors], Tensors], config: dict[str, object], words: str
) -> None:
    change(checkpoint, tensors, **config)
    with pytest.raises(ModelLoadError, match=words):
        read(checkpoint)


@pytest.mark.parametrize(
    ("tensors", "config"),
    [
        (lambda found: {name: each for name, each in found.items() if name != HEAD}, {"tie_word_embeddings": True}),
        (lambda found: found | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}, {}),
        (lambda found: found | {"mtp.fc.weight": torch.ones(4)}, {}),
        (lambda found: found | {"model.layers.2.eh_proj.weight": torch.ones(4)}, {"num_nextn_predict_layers": 1}),
    ],
    ids=["tied", "computed", "mtp", "nextn"],
)
def test_what_is_computed_tied_or_drafts_is_no_fault(
    checkpoint: Path, tensors: Callable[[Tensors], Tensors], config: dict[str, object]
) -> None:
    change(checkpoint, tensors, **config)
    read(checkpoint)


def test_first_layers_alone_need_no_others(checkpoint: Path) -> None:
    read(checkpoint, layers=1)
    change(checkpoint, lambda found: {name: each for name, each in found.items() if name != UP})
    with pytest.raises(ModelLoadError, match=f"lacks the tensor {UP}"):
        read(checkpoint, layers=1)


def test_nothing_is_written_beside_the_error(checkpoint: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """transformers' own table would break a log of JSON lines."""
    change(checkpoint, lambda found: {name: each for name, each in found.items() if name != UP})
    with pytest.raises(ModelLoadError):
        read(checkpoint)
    told = capfd.readouterr()
    assert "MISSING" not in told.out + told.err and "LOAD REPORT" not in told.out + told.err
