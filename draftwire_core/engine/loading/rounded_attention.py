"""The library's attention functions over keys and values that are rounded as in a KV cache of another type than the
model's.

The self-test compares packed passes with these, so that its tolerance does not have to cover the cache's rounding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from draftwire_core.engine.kernels.kv_rows import as_float16, rounded, widened
from draftwire_core.engine.kv.kv_dtype import KvDtype

Round = Callable[[torch.Tensor], torch.Tensor]

_ROUNDINGS: dict[KvDtype, Round] = {
    "float16": lambda rows: as_float16(rows).to(rows.dtype),
    "q8_0": lambda rows: widened(rounded(rows)).to(rows.dtype),
}
"""Keys or values [batch, kv_heads, tokens, dim] as they are read from the cache, in their own dtype."""


def rounded_name(attention: str, kv_dtype: KvDtype) -> str:
    """The name of the function that rounds and calls the library's `attention`, "eager" or "sdpa"."""
    return f"draftwire_{kv_dtype}_{attention}"


def _eager(round_rows: Round) -> Callable[..., Any]:
    def attend(
        module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        eager = sys.modules[type(module).__module__].eager_attention_forward  # each architecture has its own
        return eager(module, query, round_rows(key), round_rows(value), *args, **kwargs)

    return attend


def _sdpa(round_rows: Round) -> Callable[..., Any]:
    def attend(
        module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        return sdpa_attention_forward(module, query, round_rows(key), round_rows(value), *args, **kwargs)

    return attend


for _kv_dtype, _round_rows in _ROUNDINGS.items():
    AttentionInterface.register(rounded_name("eager", _kv_dtype), _eager(_round_rows))
    AttentionInterface.register(rounded_name("sdpa", _kv_dtype), _sdpa(_round_rows))
    AttentionMaskInterface.register(rounded_name("eager", _kv_dtype), eager_mask)
    AttentionMaskInterface.register(rounded_name("sdpa", _kv_dtype), sdpa_mask)
