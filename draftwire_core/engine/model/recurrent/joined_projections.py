"""The projections of a gated delta net's inputs as one product, where transformers has two to four."""

from __future__ import annotations

from transformers import PreTrainedModel

from draftwire_core.engine.model.linear.joined_layers import join_layers
from draftwire_core.engine.model.linear.linear_weight import MakeLinear, weight_of

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
