"""Tensors in safetensors files: which are found, and files that are damaged."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.checkpoint.tensor_files import FLOATS, TensorFiles

INDEX = "model.safetensors.index.json"


def write(place: Path, **files: dict[str, torch.Tensor]) -> None:
    """Writes files and their index."""
    for name, tensors in files.items():
        save_file(tensors, place / f"{name}.safetensors")
    index = {tensor: f"{name}.safetensors" for name, tensors in files.items() for tensor in tensors}
    (place / INDEX).write_text(json.dumps({"weight_map": index}))


def opened(place: Path) -> TensorFiles:
    (place / "config.json").touch()
    return TensorFiles.open(Checkpoint.find(str(place)))


def error_of(place: Path) -> str:
    with pytest.raises(ModelLoadError) as error:
        opened(place)
    return str(error.value)


def test_several_files(tmp_path: Path) -> None:
    write(tmp_path, one={"a": torch.ones(2)}, two={"b": torch.zeros(3), "c": torch.zeros(1)})
    files = opened(tmp_path)
    assert "a" in files and "d" not in files and files.dtype("b") == torch.float32 and files.dtype("d") is None
    assert torch.equal(files.tensor("a", [(2,)], FLOATS), torch.ones(2))
    assert set(files.unread) == {"b", "c"}


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    write(tmp_path, one={"a": torch.ones(2)})
    files = opened(tmp_path)
    for name, shape, dtype, why in (
        ("b", (2,), torch.float32, "b is missing"),
        ("a", (3,), torch.float32, r"a has shape \[2\], not \[3\]"),
        ("a", (2,), torch.int8, "a has type float32, not int8"),
    ):
        with pytest.raises(ModelLoadError, match=f"tensor {why}$"):
            files.tensor(name, [shape], [dtype])


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(2), "b": torch.ones(50)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    assert "model.safetensors is damaged: it ends before tensor b does" in error_of(tmp_path)
    for size in (0, 4, 20, 60):
        path.write_bytes(whole[:size])
        assert "model.safetensors is damaged: " in error_of(tmp_path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    assert "there is no model.safetensors" in error_of(tmp_path)
    write(tmp_path, one={"a": torch.ones(2)})
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}}))
    assert f"tensor b is not in one.safetensors, where {INDEX} says it is" in error_of(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "../one.safetensors"}}))
    assert "names ../one.safetensors, which is not a file next to it" in error_of(tmp_path)
    for damaged in ("", "{}", "[]", '{"weight_map": 3}'):
        (tmp_path / INDEX).write_text(damaged)
        assert f"{INDEX} cannot be read" in error_of(tmp_path)
