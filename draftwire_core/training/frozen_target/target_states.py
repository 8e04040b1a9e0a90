"""Hidden states between a frozen target's layers, collected in its forward pass."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from draftwire_core.engine.model.shallow_model import decoder_layers, stream_of


@contextmanager
def reading(base: PreTrainedModel, aux_layers: Collection[int]) -> Iterator[dict[int, torch.Tensor]]:
    """Collects the states that enter layers of `base` within the context, [windows, length, hidden], by layer.

    The number of layers stands for what leaves the last one.
    """
    layers = decoder_layers(base)
    found: dict[int, torch.Tensor] = {}

    def entering(index: int) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found[index] = stream_of(args[0] if args else kwargs["hidden_states"])

        return hook

    def left(_: nn.Module, args: Any, out: Any) -> None:
        found[len(layers)] = stream_of(out[0] if isinstance(out, tuple) else out)

    hooks = [
        layers[index].register_forward_pre_hook(entering(index), with_kwargs=True)
        for index in set(aux_layers)
        if index < len(layers)
    ]
    hooks.append(layers[-1].register_forward_hook(left))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
