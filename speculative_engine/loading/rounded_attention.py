"""The library's attention functions over keys and values that are rounded as in a KV cache of 8 bits.

The self-test compares packed passes with these, so that its tolerance does not have to cover the cache's rounding.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from speculative_engine.kernels.kv_rows import rounded, widened

ROUNDED_NAMES = {"eager": "draftwire_rounded_eager", "sdpa": "draftwire_rounded_sdpa"}
"""The names of these functions, by the library's names of those that they call."""


def _in_8_bits(rows: torch.Tensor) -> torch.Tensor:
    """Keys or values [batch, kv_heads, tokens, dim] as they are read from the cache, in their own dtype."""
    return widened(rounded(rows)).to(rows.dtype)


def _eager(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    attend = sys.modules[type(module).__module__].eager_attention_forward  # each architecture has its own
    return attend(module, query, _in_8_bits(key), _in_8_bits(value), *args, **kwargs)


def _sdpa(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    return sdpa_attention_forward(module, query, _in_8_bits(key), _in_8_bits(value), *args, **kwargs)


AttentionInterface.register(ROUNDED_NAMES["eager"], _eager)
AttentionInterface.register(ROUNDED_NAMES["sdpa"], _sdpa)
AttentionMaskInterface.register(ROUNDED_NAMES["eager"], eager_mask)
AttentionMaskInterface.register(ROUNDED_NAMES["sdpa"], sdpa_mask)
