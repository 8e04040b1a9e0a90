"""A checkpoint is data: code that comes with it runs only if the operator allows it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.models.tiny_checkpoint import write_checkpoint

SAFE, PICKLE = "model.safetensors", "pytorch_model.bin"


class Code:
    """An object whose unpickling runs code."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return (Path.touch, (self.trace,))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A file that exists once foreign code has run."""
    return tmp_path / "trace"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint")


def load(checkpoint: Path) -> PackedModel:
    return PackedModel.load(str(checkpoint), slots=256, dtype="float32")


def test_a_pickle_with_code_is_refused_and_the_code_not_run(checkpoint: Path, trace: Path) -> None:
    tensors: dict[str, Any] = load_file(checkpoint / SAFE)
    torch.save(tensors | {"model.norm.weight": Code(trace)}, checkpoint / PICKLE)
    (checkpoint / SAFE).unlink()
    with pytest.raises(ModelLoadError, match="may be code, and is not read"):
        load(checkpoint)
    assert not trace.exists()


def test_a_pickle_beside_safetensors_is_not_opened(checkpoint: Path, trace: Path) -> None:
    torch.save({"model.norm.weight": Code(trace)}, checkpoint / PICKLE)
    assert load(checkpoint).layers == 2
    assert not trace.exists()


def as_pickle(checkpoint: Path, *, legacy: bool) -> Path:
    """Turns a checkpoint's weights into a pickle."""
    torch.save(load_file(checkpoint / SAFE), checkpoint / PICKLE, _use_new_zipfile_serialization=not legacy)
    (checkpoint / SAFE).unlink()
    return checkpoint / PICKLE


def large_checkpoint(tmp_path: Path) -> Path:
    """Writes a checkpoint of 18 MB."""
    return write_checkpoint(tmp_path / "large", vocab_size=70_000)


def test_a_large_pickle_in_the_format_before_torch_1_6(tmp_path: Path) -> None:
    checkpoint = large_checkpoint(tmp_path)
    assert as_pickle(checkpoint, legacy=True).stat().st_size > 16 << 20
    assert load(checkpoint).vocab_size == 70_000


@pytest.mark.parametrize(
    ("legacy", "reason"), [(False, f"large: {PICKLE} is damaged: its table of contents"), (True, "100 more bytes")]
)
def test_a_large_pickle_that_is_cut_off(tmp_path: Path, legacy: bool, reason: str) -> None:
    checkpoint = large_checkpoint(tmp_path)
    pickle = as_pickle(checkpoint, legacy=legacy)
    with pickle.open("rb+") as file:
        file.truncate(pickle.stat().st_size - 100)
    with pytest.raises(ModelLoadError, match=reason):
        load(checkpoint)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_that_comes_along_is_not_run_unasked(checkpoint: Path, trace: Path, file: str) -> None:
    (checkpoint / "brought.py").write_text(f"import pathlib\npathlib.Path({str(trace)!r}).touch()\n")
    config = json.loads((checkpoint / file).read_text())
    config["auto_map"] = (
        {"AutoConfig": "brought.Config", "AutoModelForCausalLM": "brought.Model"}
        if file == "config.json"
        else {"AutoTokenizer": ["brought.Tokenizer", None]}
    )
    config["model_type"] = "brought"
    config.pop("tokenizer_class", None)
    (checkpoint / file).write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="has code of its own, which runs only if --trust-remote-code"):
        load(checkpoint) if file == "config.json" else Tokenizer.load(str(checkpoint))
    assert not trace.exists()
