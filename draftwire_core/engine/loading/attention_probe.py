"""An attention function that records its calls, to find out how a model really attends, whatever its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from draftwire_core.engine.model.attention.packed_attention import packed_attention

PROBE_NAME = "draftwire_probe"


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call of the attention function."""

    layer: int | None
    """Index under which the layer's keys and values are cached; None if it has none."""
    sliding_window: int | None


_calls: ContextVar[list[AttentionCall]] = ContextVar("draftwire_attention_calls")


@contextmanager
def noted_calls() -> Iterator[list[AttentionCall]]:
    """Records the calls of model passes within the context in the list it yields."""
    calls: list[AttentionCall] = []
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


def _probe(module: torch.nn.Module, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    _calls.get().append(AttentionCall(getattr(module, "layer_idx", None), kwargs.get("sliding_window")))
    return packed_attention(module, *args, **kwargs)


AttentionInterface.register(PROBE_NAME, _probe)
