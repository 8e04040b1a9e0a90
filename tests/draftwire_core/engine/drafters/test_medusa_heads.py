"""Heads in the published layout: read back as written, and refused if invalid."""

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from draftwire_core.engine.drafters.medusa import MedusaOptions, medusa_drafter
from draftwire_core.engine.drafters.medusa_heads import MedusaHeads, load_heads
from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.model.packed_model import ModelLoadError
from tests.harness.engine.engines import packed, tiny_model

HIDDEN, VOCABULARY = 6, 20
Tensors = dict[str, torch.Tensor]


def published(heads: int = 2, layers: int = 1) -> Tensors:
    """Returns tensors as FasterDecoding/Medusa saves them."""
    tensors = {}
    for head in range(heads):
        for layer in range(layers):
            tensors[f"{head}.{layer}.linear.weight"] = torch.randn(HIDDEN, HIDDEN)
            tensors[f"{head}.{layer}.linear.bias"] = torch.randn(HIDDEN)
        tensors[f"{head}.{layers}.weight"] = torch.randn(VOCABULARY, HIDDEN)
    return tensors


def write(directory: Path, tensors: Any, *, heads: Any = 2, layers: Any = 1, pickled: bool = False) -> Path:
    (directory / "config.json").write_text(json.dumps({"medusa_num_heads": heads, "medusa_num_layers": layers}))
    if pickled:
        torch.save(tensors, directory / "medusa_lm_head.pt")
    else:
        save_file(tensors, directory / "medusa_lm_head.safetensors")
    return directory


@pytest.mark.parametrize("pickled", [True, False])
@pytest.mark.parametrize("prefix", ["", "medusa_head."])
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_the_published_layout(tmp_path: Path, pickled: bool, prefix: str, layers: int) -> None:
    tensors = published(layers=layers)
    write(tmp_path, {prefix + name: tensor for name, tensor in tensors.items()}, layers=layers, pickled=pickled)
    heads = load_heads(str(tmp_path), torch.float32)
    assert (len(heads), heads.hidden_size, heads.vocab_size) == (2, HIDDEN, VOCABULARY)
    state = torch.randn(3, HIDDEN)
    for index, head in enumerate(heads):
        expected = state
        for layer in range(layers):
            weight, bias = (tensors[f"{index}.{layer}.linear.{what}"] for what in ("weight", "bias"))
            expected = expected + torch.nn.functional.silu(expected @ weight.T + bias)
        torch.testing.assert_close(head(state), expected @ tensors[f"{index}.{layers}.weight"].T)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    heads = MedusaHeads(3, 2, HIDDEN, VOCABULARY)
    heads.save(tmp_path / "new", "models/target", torch.float32)
    read = load_heads(str(tmp_path / "new"), torch.float32)
    assert read.state_dict().keys() == heads.state_dict().keys()
    assert all(torch.equal(read.state_dict()[name], tensor) for name, tensor in heads.state_dict().items())
    assert json.loads((tmp_path / "new" / "config.json").read_text())["base_model_name_or_path"] == "models/target"


def test_whoever_may_read_one_of_its_files_may_read_all(tmp_path: Path) -> None:
    MedusaHeads(1, 1, HIDDEN, VOCABULARY).save(tmp_path, "", torch.float32)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert len(modes) == 2
    assert len(set(modes.values())) == 1, modes


def test_heads_that_the_configuration_does_not_name_are_left_out(tmp_path: Path) -> None:
    assert len(load_heads(str(write(tmp_path, published(5), heads=2)), torch.bfloat16)) == 2


class Code:
    """An object whose unpickling runs code."""

    def __reduce__(self) -> Any:
        return (print, ("this must not run",))


def without(name: str) -> Tensors:
    return {key: tensor for key, tensor in published().items() if key != name}


def cut_short(directory: Path) -> None:
    path = write(directory, published(), pickled=True) / "medusa_lm_head.pt"
    path.write_bytes(path.read_bytes()[:200])


def bad_safetensors(directory: Path) -> None:
    (write(directory, published()) / "medusa_lm_head.safetensors").write_bytes(b"\xff" * 100)


CONFIG = '{"medusa_num_heads": 1, "medusa_num_layers": 1}'
BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty directory": (lambda at: None, "config.json"),
    "no JSON": (lambda at: (at / "config.json").write_text("{"), "config.json cannot be read"),
    "no weights": (lambda at: (at / "config.json").write_text(CONFIG), "has neither medusa_lm_head.safetensors nor"),
    "no number of heads": (lambda at: write(at, published(), heads=None), "medusa_num_heads must be a whole number"),
    "too many heads": (lambda at: write(at, published(), heads=10**9), "from 1 to 64, got 1000000000"),
    "truth for a number": (lambda at: write(at, published(), layers=True), "medusa_num_layers must be"),
    "a missing head": (lambda at: write(at, published(1)), "tensor 1.0.linear.weight is missing"),
    "a missing output": (lambda at: write(at, without("0.1.weight")), "tensor 0.1.weight is missing"),
    "a missing bias": (lambda at: write(at, without("1.0.linear.bias")), "tensor 1.0.linear.bias is missing"),
    "a wrong shape": (
        lambda at: write(at, published() | {"1.1.weight": torch.zeros(VOCABULARY + 1, HIDDEN)}),
        r"tensor 1.1.weight has shape \(21, 6\), expected \(20, 6\)",
    ),
    "a wrong rank": (lambda at: write(at, published() | {"0.1.weight": torch.zeros(4)}), r"has shape \(4,\)"),
    "a wrong type": (
        lambda at: write(at, published() | {"0.0.linear.bias": torch.zeros(HIDDEN, dtype=torch.int64)}),
        "dtype int64",
    ),
    "code": (lambda at: write(at, published() | {"x": Code()}, pickled=True), "may be code, and is not read"),
    "no table": (lambda at: write(at, [torch.zeros(3)], pickled=True), "not a table of tensors"),
    "a file cut short": (cut_short, "cannot be read"),
    "an empty file": (lambda at: write(at, {}, pickled=True).joinpath("medusa_lm_head.pt").write_bytes(b""), "cannot"),
    "no safetensors": (bad_safetensors, "medusa_lm_head.safetensors"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_ones_are_refused(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, words = BAD[name]
    make(tmp_path)
    with pytest.raises(ModelLoadError, match=words) as caught:
        load_heads(str(tmp_path), torch.float32)
    assert str(caught.value).startswith(f"heads {tmp_path}: ")
    assert capsys.readouterr().out == ""


def test_there_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such directory"):
        load_heads(str(tmp_path / "none"), torch.float32)


@pytest.mark.parametrize(
    ("hidden", "vocabulary", "words"),
    [(32, 300, "hidden size 32 does not match the target's 64"), (64, 299, "vocabulary size 299 does not match")],
)
def test_heads_of_another_target(tmp_path: Path, hidden: int, vocabulary: int, words: str) -> None:
    MedusaHeads(1, 1, hidden, vocabulary).save(tmp_path, "other", torch.float32)
    with pytest.raises(ModelLoadError, match=words):
        medusa_drafter(MedusaOptions(str(tmp_path)), packed(tiny_model("Llama"), 10))


def test_a_directory_must_be_named() -> None:
    with pytest.raises(FieldError, match="must name a directory"):
        MedusaOptions()
