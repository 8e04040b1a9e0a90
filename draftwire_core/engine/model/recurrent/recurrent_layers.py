"""Recurrent layers of transformers' models that run in packed passes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

from draftwire_core.engine.kernels.recurrent.recurrence import run
from draftwire_core.engine.model.attention.packed_attention import current_pass, in_packed_pass
from draftwire_core.engine.model.recurrent.mixer import Mixer
from draftwire_core.engine.model.recurrent.mixers import (
    DeltaMixer,
    KimiMixer,
    Mamba2Mixer,
    ShortConvMixer,
    interleaved,
    joined,
    separate,
)
from draftwire_core.engine.model.recurrent.scan_mixers import LruMixer, MambaMixer
from draftwire_core.engine.model.recurrent.shift_mixers import RwkvAttentionMixer, RwkvForwardMixer

MIXERS: dict[str, Callable[[nn.Module], Mixer]] = {
    "Qwen3NextGatedDeltaNet": lambda module: DeltaMixer(module, interleaved),
    "Qwen3_5GatedDeltaNet": lambda module: DeltaMixer(module, joined),
    "Qwen3_5MoeGatedDeltaNet": lambda module: DeltaMixer(module, joined),
    "OlmoHybridGatedDeltaNet": lambda module: DeltaMixer(module, separate),
    "KimiLinearDeltaAttention": KimiMixer,
    "Lfm2ShortConv": ShortConvMixer,
    "Lfm2MoeShortConv": ShortConvMixer,
    "Lfm3ShortConv": ShortConvMixer,
    "Mamba2Mixer": Mamba2Mixer,
    "NemotronHMamba2Mixer": Mamba2Mixer,
    "GraniteMoeHybridMambaLayer": Mamba2Mixer,
    "FalconH1Mixer": Mamba2Mixer,
    "BambaMixer": Mamba2Mixer,
    "Zamba2MambaMixer": Mamba2Mixer,
    "MambaMixer": MambaMixer,
    "FalconMambaMixer": MambaMixer,
    "JambaMambaMixer": MambaMixer,
    "RecurrentGemmaRecurrentBlock": LruMixer,
    "RwkvSelfAttention": RwkvAttentionMixer,
    "RwkvFeedForward": RwkvForwardMixer,
}
"""The maker of a mixer, by the class name of its module."""


_SHARED_ATTENTION = ("Zamba2Attention",)
"""Attention of which one module serves several layers, and is told by its caller which one it is."""


def use_packed_mixers(model: nn.Module) -> list[Mixer]:
    """Lets the recurrent mixers of `model` run in packed passes; returns them in order, none if there are none.

    Outside of packed passes they still run transformers' own code. Their linear layers may be replaced later.
    """
    for module in model.modules():
        if hasattr(module, "_rescale_layers"):  # RWKV, which else scales weights at its first pass
            module._rescale_layers()
    mixers: list[Mixer] = []
    first = 0
    for module in list(model.modules()):
        make = MIXERS.get(type(module).__name__)
        if make is not None:
            mixer = make(module)
            # Not a module of its own: weights keep their names.
            object.__setattr__(module, "_packed_mixer", (mixer, first))
            kind: Any = type(module)
            module.__class__ = _packed(kind)
            mixers.append(mixer)
            first += len(mixer.recurrences)
        elif type(module).__name__ in _SHARED_ATTENTION:
            module.register_forward_pre_hook(_take_layer, with_kwargs=True)
    return mixers


def recurrent_layers(model: nn.Module) -> set[int]:
    """Indices of the layers of a model that have a packed mixer."""
    found = {name: module for name, module in model.named_modules() if hasattr(module, "_packed_mixer")}
    return {
        int(module.layer_idx) if hasattr(module, "layer_idx") else _layer_of(name) for name, module in found.items()
    }


def _layer_of(name: str) -> int:
    """The layer that a module is in, by its name."""
    return int(next(part for part in name.split(".") if part.isdigit()))


def _take_layer(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    # The keys and values of each call belong to the layer that calls.
    module.layer_idx = kwargs["layer_idx"]


@cache
def _packed(kind: Any) -> Any:
    def forward(self: nn.Module, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not in_packed_pass():
            return kind.forward(self, hidden_states, *args, **kwargs)
        mixer, first = self._packed_mixer
        with torch._C.DisableTorchFunction():  # RowExactFunctions of the caller; mixers are row-exact themselves
            mixed = _mix(mixer, first, hidden_states[0]).unsqueeze(0)
        return (mixed, None) if mixer.returns_pair else mixed

    return type(kind.__name__, (kind,), {"forward": forward, "__doc__": kind.__doc__, "__module__": __name__})


def _mix(mixer: Mixer, first: int, hidden: torch.Tensor) -> torch.Tensor:
    """The output [rows, width] of a mixer for the rows of the running pass. first: number of its first recurrence"""
    plan = current_pass().plan
    assert plan is not None, "a model with recurrent layers plans its passes"

    def advance(number: int, inputs: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        shape, weights = mixer.recurrences[number]
        memory = plan.states.layer(first + number)
        results = run(shape, weights, plan.work(shape.taps), inputs, gates, memory)
        if len(plan.stored_rows):
            memory.inputs[plan.stored_at] = inputs[plan.stored_rows]
            memory.gates[plan.stored_at] = gates[plan.stored_rows]
        return results

    return mixer.mix(hidden, advance)
