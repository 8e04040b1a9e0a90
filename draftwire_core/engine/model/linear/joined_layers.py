"""Linear layers with the same inputs, joined in place."""

from __future__ import annotations

import torch
from torch import nn

from draftwire_core.engine.model.file_pages import let_go_of
from draftwire_core.engine.model.linear.linear_weight import MakeLinear, joined


class OutputRange(nn.Module):
    """A range of a joined linear layer's outputs, for code that calls the layers one by one."""

    def __init__(self, linear: nn.Module, first: int, last: int):
        super().__init__()
        self._linear = (linear,)  # in a tuple, so that it is not registered twice
        self._first, self._last = first, last
        self.out_features = last - first

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs [..., inputs] -> [..., outputs of the range]"""
        return self._linear[0](inputs)[..., self._first : self._last].to(inputs.dtype)


def join_layers(parent: nn.Module, names: tuple[str, ...], make_linear: MakeLinear) -> nn.Module:
    """Joins the named linear layers of `parent` into one, and replaces each by its range of the outputs."""
    parts = [getattr(parent, name) for name in names]
    whole = joined(parts, make_linear)
    first = 0
    for name, part in zip(names, parts, strict=True):
        setattr(parent, name, OutputRange(whole, first, first + part.out_features))
        first += part.out_features
        let_go_of(part)
    return whole
