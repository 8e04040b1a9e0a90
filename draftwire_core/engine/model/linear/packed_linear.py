"""Linear layers for drafters: weights packed once, multiplied by the fastest product, without row-exactness.

A drafter's bits decide no token, so it need not pay the cost of `row_exact`, up to half of a small layer's time.
"""

from __future__ import annotations

import torch
from torch import nn

from draftwire_core.engine.model.file_pages import let_go_of
from draftwire_core.engine.model.linear.linear_weight import MakeLinear, weight_of
from draftwire_core.engine.model.linear.row_exact import product_for


class PackedLinear(nn.Module):
    """A linear layer whose weight is packed where possible."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.product = product_for(weight)(weight)
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs [..., in_features] -> [..., out_features]"""
        out = self.product(inputs.reshape(-1, self.in_features), self.bias)
        return out.view(*inputs.shape[:-1], self.out_features)


def replace_linears(model: nn.Module, make_linear: MakeLinear) -> None:
    """Replaces the linear layers of `model` by those that `make_linear` makes, in place."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            weight = weight_of(child)
            if weight is not None:
                setattr(parent, name, make_linear(weight, None if child.bias is None else child.bias.data))
                let_go_of(child)
