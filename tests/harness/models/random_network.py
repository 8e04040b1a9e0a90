"""Random weights of small networks that read features, and changes to their checkpoints."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.harness.engine.engines import VOCABULARY

LAYERS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
"""Fields of the decoder layers for the tiny models of `engines`, which have 3 layers of width 64."""


def set_randomly(parts: Sequence[nn.Module]) -> None:
    """Sets all weights."""
    with torch.no_grad():
        for part in parts:
            for weight in part.parameters():
                weight.copy_(torch.randn_like(weight) * 0.15 + (weight.dim() == 1))


def every_second(draft_vocab_size: int) -> torch.Tensor | None:
    """Returns the target's ids of a reduced vocabulary, which has every second token; None for the whole one."""
    return None if draft_vocab_size == VOCABULARY else 2 * torch.arange(draft_vocab_size)


def config_of(directory: Path) -> dict[str, Any]:
    """Returns the fields of a checkpoint's configuration."""
    fields: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return fields


def write_config(directory: Path, fields: dict[str, Any]) -> Path:
    """Writes a checkpoint's configuration; returns the directory."""
    (directory / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    return directory
