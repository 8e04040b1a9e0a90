"""Shorter lengths in a model under test, so that a script of a few tokens reaches beyond them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from draftwire_core.engine.model.attention.absolute_positions import counts_tokens
from draftwire_core.engine.model.attention.packed_attention import CHUNKED
from draftwire_core.engine.model.packed_model import PackedModel

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
