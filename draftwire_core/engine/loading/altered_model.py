"""The model under test as the self-test compares it: with the KV cache's rounding in the library's attention, and with
shorter lengths.

Rounded keys and values let the tolerance leave out the cache's rounding. A script of a few tokens reaches beyond
shortened lengths.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from draftwire_core.engine.device.choices import KvDtype
from draftwire_core.engine.kernels.kv_rows import as_float16, rounded, widened
from draftwire_core.engine.model.attention.absolute_positions import counts_tokens
from draftwire_core.engine.model.attention.packed_attention import CHUNKED
from draftwire_core.engine.model.packed_model import PackedModel

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
        # Each architecture has its own, and a module's class may be a subclass of ours.
        modules = (sys.modules[kind.__module__] for kind in type(module).__mro__)
        eager = next(each.eager_attention_forward for each in modules if hasattr(each, "eager_attention_forward"))
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


_CHUNK = 8
_FLOOR = 4


@contextmanager
def shortened(model: PackedModel) -> Iterator[None]:
    """Shortens the chunks of attention and the steps in which queries are scaled, within the context.

    Transformers' own forwards and packed passes both read the shorter lengths. Chunks keep their length where packed
    passes do not know them, as on the kernels of GPUs, where contexts are no longer than a chunk.
    """
    chunked = CHUNKED in (getattr(model.config, "layer_types", None) or ()) and model.steps is None
    scaled = [module for module in model.model.modules() if counts_tokens(module)]
    floors = [module.floor_scale for module in scaled]
    chunk: int = model.config.attention_chunk_size if chunked else 0
    try:
        if chunked:
            model.config.attention_chunk_size = min(_CHUNK, chunk)
        for module in scaled:
            module.floor_scale = _FLOOR
        yield
    finally:
        if chunked:
            model.config.attention_chunk_size = chunk
        for module, floor in zip(scaled, floors, strict=True):
            module.floor_scale = floor
