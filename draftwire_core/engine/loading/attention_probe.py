"""How a model attends: an attention function that records its calls; and what may explain a refusal."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from draftwire_core.engine.model.attention.packed_attention import packed_attention

PROBE_NAME = "draftwire_probe"
_HIDDEN = -1e3
"""A mask adds less than this to the score of a hidden position; older code of models makes one of its own."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call of the attention function."""

    layer: int | None
    """Index under which the layer's keys and values are cached; None if it has none."""
    sliding_window: int | None
    biased: bool
    """Whether the model's code adds to scores what is not a mask."""


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
    added = kwargs["attention_mask"] if "attention_mask" in kwargs else args[3]
    biased = (
        isinstance(added, torch.Tensor) and added.is_floating_point() and bool(((added > _HIDDEN) & (added != 0)).any())
    )
    _calls.get().append(AttentionCall(getattr(module, "layer_idx", None), kwargs.get("sliding_window"), biased))
    return packed_attention(module, *args, **kwargs)


AttentionInterface.register(PROBE_NAME, _probe)


_TOKENS = 6
_INDEXER = "Indexer"
"""Part of the names of modules that select the keys of sparse attention."""


def indexer_of(model: nn.Module) -> str | None:
    """The class of a module that selects keys for sparse attention; None if there is none."""
    return next((type(each).__name__ for each in model.modules() if _INDEXER in type(each).__name__), None)


def likely_cause(model: PreTrainedModel) -> str:
    """The cause in words, as far as the model's code shows it. Runs a short forward pass."""
    if "position_ids" not in inspect.signature(type(model).forward).parameters:
        return "its code counts positions itself and takes no position_ids"
    mixer = next((each for each in model.modules() if isinstance(each, nn.Conv1d)), None)
    if mixer is not None:
        return "its layers mix tokens outside of attention (by convolutions), which packed passes do not keep apart"
    if not _begins_at_zero(model):
        return "its own positions do not begin at 0"
    return "its attention may have a mask, a bias or positions that packed attention does not receive"


def _begins_at_zero(model: PreTrainedModel) -> bool:
    """Whether a model given the positions 0, 1, 2... gives the logits that it gives without."""
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    tokens = torch.arange(1, _TOKENS + 1, device=model.device).unsqueeze(0)
    try:
        with torch.inference_mode():
            counted = model(input_ids=tokens, use_cache=False).logits
            given = model(input_ids=tokens, position_ids=tokens - 1, use_cache=False).logits
    finally:
        model.set_attn_implementation(implementation)
    return bool(torch.allclose(counted, given, rtol=1e-2, atol=1e-3))
