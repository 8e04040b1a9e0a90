"""Reads the parts of a fused gated delta net off transformers' module."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import nn
from transformers import PreTrainedModel

from draftwire_core.engine.kernels.library import LANES
from draftwire_core.engine.model.layers.layer_parts import DeltaParts, Norm
from draftwire_core.engine.model.linear.linear_weight import MakeLinear, join_layers, weight_of

PROJECTIONS = {
    "Qwen3NextGatedDeltaNet": ("in_proj_qkvz", "in_proj_ba"),
    "Qwen3_5GatedDeltaNet": ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b"),
    "Qwen3_5MoeGatedDeltaNet": ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b"),
}
"""By the class of the net."""


def join_projections(model: PreTrainedModel, make_linear: MakeLinear) -> None:
    """Gives each net of `model` whose projections can be joined a `joined_projection`, and replaces them by their
    ranges of its outputs, in place."""
    for net in list(model.modules()):
        names = PROJECTIONS.get(type(net).__name__)
        if names is not None and all(weight_of(getattr(net, name)) is not None for name in names):
            net.joined_projection = join_layers(net, names, make_linear)


_OUTPUT = "out_proj"


class _Layout(NamedTuple):
    """Places of the parts of key heads among the outputs of the joined projection, see `DeltaParts`."""

    places: tuple[int, ...]
    strides: tuple[int, ...]


def supports_net(module: nn.Module | None) -> bool:
    """Whether compiled code supports a mixer of transformers as a fused gated delta net."""
    kind = type(module).__name__
    return (
        module is not None
        and kind in _LAYOUTS
        and module.head_k_dim % LANES == 0
        and module.head_v_dim % LANES == 0
        and all(weight_of(getattr(module, name)) is not None for name in (*PROJECTIONS[kind], _OUTPUT))
    )


def read_net(
    module: nn.Module, input_norm: Norm | None, output_norm: Norm | None, make_linear: MakeLinear
) -> DeltaParts:
    """Makes the parts of a supported net. Its linear layers become parts of theirs.

    input_norm, output_norm: of the layer
    """
    kind = type(module).__name__
    layout = _LAYOUTS[kind](module)
    project = join_layers(module, PROJECTIONS[kind], make_linear)
    module.joined_projection = project
    return DeltaParts(
        module=module,
        project=project,
        output=join_layers(module, (_OUTPUT,), make_linear),
        input_norm=input_norm,
        output_norm=output_norm,
        norm=(module.norm.weight.detach().float().contiguous(), float(module.norm.variance_epsilon)),
        rates=-module.A_log.detach().float().exp(),
        bias=module.dt_bias.detach().float().contiguous(),
        places=layout.places,
        strides=layout.strides,
        strength=2.0 if getattr(module, "allow_neg_eigval", False) else 1.0,
    )


def _by_part(module: nn.Module) -> _Layout:
    """All queries, all keys, all values, all gates, all steps, all strengths."""
    heads, key, shared = module.num_k_heads, module.head_k_dim, module.num_v_heads // module.num_k_heads
    widths = (key, key, shared * module.head_v_dim, shared * module.head_v_dim, shared, shared)
    return _Layout(tuple(heads * sum(widths[:index]) for index in range(len(widths))), widths)


def _by_head(module: nn.Module) -> _Layout:
    """Each key head's query, key, values and gates in turn; then the strengths and steps of each."""
    heads, key, shared = module.num_k_heads, module.head_k_dim, module.num_v_heads // module.num_k_heads
    values = shared * module.head_v_dim
    head = 2 * key + 2 * values
    places = (0, key, 2 * key, 2 * key + values, heads * head + shared, heads * head)
    return _Layout(places, (head, head, head, head, 2 * shared, 2 * shared))


_LAYOUTS: dict[str, Callable[[nn.Module], _Layout]] = {
    "Qwen3NextGatedDeltaNet": _by_head,
    "Qwen3_5GatedDeltaNet": _by_part,
    "Qwen3_5MoeGatedDeltaNet": _by_part,
}
"""By the class of the net."""
