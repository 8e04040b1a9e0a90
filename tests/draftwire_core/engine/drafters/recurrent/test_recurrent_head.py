"""The checkpoint of a recurrent head: read as it was written, and refused if it is damaged."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwire_core.engine.drafters.recurrent.recurrent_head import RecurrentHead
from draftwire_core.engine.errors import ModelLoadError

HIDDEN, INNER, VOCABULARY, DRAFTED = 6, 10, 40, 8


def head() -> RecurrentHead:
    made = RecurrentHead(HIDDEN, INNER, VOCABULARY, 1)
    torch.nn.init.normal_(made.down.weight)
    made.draft_with(torch.arange(3, 3 + DRAFTED), torch.randn(DRAFTED, HIDDEN))
    return made


@pytest.fixture
def written(tmp_path: Path) -> Path:
    head().save(tmp_path, "models/target", torch.float32)
    return tmp_path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = head()
    made.save(tmp_path / "new", "models/target", torch.bfloat16)
    read = RecurrentHead.load(str(tmp_path / "new"), torch.float32)
    assert read.drafted_tokens == DRAFTED
    assert read.token_ids.tolist() == made.token_ids.tolist()
    states, embeddings = torch.randn(3, HIDDEN), torch.randn(3, HIDDEN)
    torch.testing.assert_close(
        read.logits(read(states, embeddings)), made.logits(made(states, embeddings)), rtol=0.05, atol=0.1
    )
    assert json.loads((tmp_path / "new" / "config.json").read_text())["base_model_name_or_path"] == "models/target"


def test_scales_of_states_and_embeddings_do_not_matter() -> None:
    made, states, embeddings = head(), torch.randn(3, HIDDEN), torch.randn(3, HIDDEN)
    torch.testing.assert_close(made(30 * states, embeddings / 20), made(states, embeddings), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("architectures", ["LlamaForCausalLM"], "architectures must be"),
        ("hidden_size", 0, "hidden_size must be a whole number"),
        ("hidden_size", 8, "has shape"),
        ("inner_size", 1 << 30, "inner_size must be a whole number"),
        ("vocab_size", "40", "vocab_size must be a whole number"),
        ("vocab_size", 5, "must have ids from 0 to 4"),
        ("drafted_tokens", 9, "has shape"),
    ],
)
def test_wrong_configurations(written: Path, field: str, value: Any, told: str) -> None:
    config = json.loads((written / "config.json").read_text())
    (written / "config.json").write_text(json.dumps(config | {field: value}))
    with pytest.raises(ModelLoadError, match=told):
        RecurrentHead.load(str(written), torch.float32)


@pytest.mark.parametrize(
    ("name", "tensor", "told"),
    [
        ("enter.weight", torch.zeros(HIDDEN + 2 * INNER, 2 * HIDDEN, dtype=torch.int32), "has dtype int32"),
        ("down.weight", None, "tensor down.weight is missing"),
        ("token_ids", torch.zeros(DRAFTED), "has dtype float32"),
        ("token_ids", torch.zeros(DRAFTED, dtype=torch.int64), "has an id more than once"),
        ("token_ids", torch.arange(-1, DRAFTED - 1), "must have ids from 0"),
    ],
)
def test_wrong_tensors(written: Path, name: str, tensor: torch.Tensor | None, told: str) -> None:
    tensors = load_file(written / "model.safetensors")
    del tensors[name]
    save_file(tensors if tensor is None else tensors | {name: tensor}, written / "model.safetensors")
    with pytest.raises(ModelLoadError, match=told):
        RecurrentHead.load(str(written), torch.float32)


def test_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such directory"):
        RecurrentHead.load(str(tmp_path / "none"), torch.float32)
