"""The positions of rows, for attention that counts tokens instead of being told positions.

Llama 4 scales the queries of layers without rotary embeddings by their position, which it takes as the number of tokens
in its cache and the row's place in the pass. In packed passes rows of many sequences follow each other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from draftwire_core.engine.model.attention.packed_attention import ATTENTION_NAME, current_pass


class _RowPositions:
    """Stands in for transformers' cache: adds to each row's place in the pass what makes it the row's position."""

    def __init__(self, positions: torch.Tensor):
        """positions: int64 [rows]"""
        self._offsets = positions - torch.arange(len(positions), device=positions.device)

    def get_seq_length(self, layer: int) -> torch.Tensor:
        """int64 [rows]"""
        return self._offsets

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns its arguments: packed attention caches them."""
        return keys, values


def give_positions(model: nn.Module) -> None:
    """Gives the attentions of `model` that count tokens the positions of their rows, in packed passes."""
    for module in model.modules():
        if counts_tokens(module):
            module.register_forward_pre_hook(_with_positions, with_kwargs=True)


def counts_tokens(module: nn.Module) -> bool:
    """Whether a module is an attention that scales queries by positions that it counts."""
    return bool(getattr(module, "attn_temperature_tuning", False)) and not getattr(module, "use_rope", True)


def _with_positions(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if module.config._attn_implementation != ATTENTION_NAME:
        return args, kwargs
    return args, {**kwargs, "past_key_values": _RowPositions(current_pass().batch.positions)}
