"""Mixtures of experts for CPUs, with the same linear layers as other models and the same bits for a row in any company.

Rows are grouped by expert, and each expert multiplies its rows at once. A row adds the outputs of its experts in the
order of their ranks, so that neither the other rows nor the experts they take change a bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from speculative_engine.model.linear.linear_weight import MakeLinear, joined


class Expert(NamedTuple):
    """The linear layers of an expert, those of transformers or of a checkpoint."""

    gate: nn.Module
    up: nn.Module
    down: nn.Module


class StoredExperts(nn.Module):
    """Experts as they lie in a checkpoint. They are replaced before they run."""

    def __init__(self, experts: Sequence[Expert], like: nn.Module):
        """like: the experts of transformers, for their activation"""
        super().__init__()
        self.layers = nn.ModuleList(layer for expert in experts for layer in expert)
        self.activation = _activation(like)

    @property
    def experts(self) -> list[Expert]:
        """The experts."""
        layers = list(self.layers)
        return [Expert(*layers[first : first + 3]) for first in range(0, len(layers), 3)]


class ClampedGate(nn.Module):
    """The activation of gpt-oss, of gates and ups."""

    def __init__(self, alpha: float, limit: float):
        super().__init__()
        self.alpha, self.limit = alpha, limit
        self.sigmoid = nn.Sigmoid()

    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """gate, up [rows, width] -> [rows, width]"""
        gate, up = gate.clamp(max=self.limit), up.clamp(min=-self.limit, max=self.limit)
        return (up + 1) * (gate * self.sigmoid(gate * self.alpha))


class UsualGate(nn.Module):
    """The activation of most experts, of gates and ups."""

    def __init__(self, function: nn.Module):
        super().__init__()
        self.function = function

    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """gate, up [rows, width] -> [rows, width]"""
        activated: torch.Tensor = self.function(gate)
        return activated * up


class Experts(nn.Module):
    """Experts with linear layers of any kind."""

    def __init__(self, experts: Sequence[Expert], activation: nn.Module, make_linear: MakeLinear):
        super().__init__()
        self.gate_and_up = nn.ModuleList(joined([expert.gate, expert.up], make_linear) for expert in experts)
        self.down = nn.ModuleList(joined([expert.down], make_linear) for expert in experts)
        self.activation = activation

    def forward(self, hidden: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """hidden [rows, width]; chosen: each row's experts by rank, [rows, ranks]; shares [rows, ranks] -> [rows,
        width]"""
        parts = hidden.new_empty(*chosen.shape, hidden.shape[-1])
        for expert in chosen.unique().tolist():
            rows, ranks = (chosen == expert).nonzero(as_tuple=True)
            gate, up = self.gate_and_up[expert](hidden[rows]).chunk(2, -1)
            parts[rows, ranks] = self.down[expert](self.activation(gate.contiguous(), up))
        total = torch.zeros(hidden.shape, dtype=torch.float32)
        for rank in range(chosen.shape[1]):
            total += parts[:, rank].float() * shares[:, rank, None].float()
        return total.to(hidden.dtype)


class Router(nn.Module):
    """Chooses the experts of each row. Of experts that are equally good, the first is taken."""

    def __init__(self, router: nn.Module, make_linear: MakeLinear):
        super().__init__()
        linear = nn.Linear(router.weight.shape[1], len(router.weight), bias=hasattr(router, "bias"), device="meta")
        linear.weight = router.weight
        if hasattr(router, "bias"):
            linear.bias = router.bias
        self.linear = joined([linear], make_linear)
        self.count = int(router.top_k)
        self.of_chosen = type(router).__name__ == "GptOssTopKRouter"
        """Whether the softmax is over the chosen experts, not over all."""
        self.normalised = bool(getattr(router, "norm_topk_prob", not self.of_chosen))
        self.in_float32 = type(router).__name__ == "MixtralTopKRouter"

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """hidden [..., width] -> logits [rows, experts]; shares and experts of each row by rank, [rows, ranks]"""
        logits: torch.Tensor = self.linear(hidden.reshape(-1, hidden.shape[-1]))
        scores = logits if self.of_chosen else logits.softmax(-1, dtype=torch.float32)
        best = scores.sort(dim=-1, descending=True, stable=True)
        shares, chosen = best.values[:, : self.count], best.indices[:, : self.count]
        if self.of_chosen:
            shares = shares.softmax(-1, dtype=torch.float32)
        elif self.normalised:
            total = shares[:, :1].clone()  # in order, while torch's sum has an order that depends on the rows
            for rank in range(1, self.count):
                total += shares[:, rank : rank + 1]
            shares = shares / total
        return logits, shares if self.in_float32 else shares.to(logits.dtype), chosen


EXPERTS = {
    "MixtralExperts": "MixtralTopKRouter",
    "Qwen2MoeExperts": "Qwen2MoeTopKRouter",
    "Qwen3MoeExperts": "Qwen3MoeTopKRouter",
    "GptOssExperts": "GptOssTopKRouter",
}
"""Classes of experts in transformers that are replaced, with those of their routers."""


def replace_experts(model: nn.Module, make_linear: MakeLinear, make_router: MakeLinear) -> None:
    """Replaces the mixtures of experts of `model`, in place; those of other classes than EXPERTS stay as they are.

    make_linear: for experts. make_router: for routers, whose weights stay as they are.
    """
    replaced = {"StoredExperts", *EXPERTS, *EXPERTS.values()}
    # Holds no experts, so that each layer's weights are freed when they are replaced.
    places = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child).__name__ in replaced
    ]
    for parent, name in places:
        child = getattr(parent, name)
        if isinstance(child, StoredExperts):
            made: nn.Module = Experts(child.experts, child.activation, make_linear)
        elif type(child).__name__ in EXPERTS:
            made = Experts(_experts_of(child), _activation(child), make_linear)
        else:
            made = Router(child, make_router)
        setattr(parent, name, made)


def _activation(experts: nn.Module) -> nn.Module:
    if type(experts).__name__ == "GptOssExperts":
        return ClampedGate(float(experts.alpha), float(experts.limit))
    return UsualGate(experts.act_fn)


def _experts_of(experts: nn.Module) -> list[Expert]:
    """Takes the experts of transformers apart."""
    turned = type(experts).__name__ == "GptOssExperts"
    found = []
    for index, (first, second) in enumerate(zip(experts.gate_up_proj.data, experts.down_proj.data, strict=True)):
        if turned:
            bias = experts.gate_up_proj_bias.data[index]
            gate, up = (linear_of(first.t()[place::2], bias[place::2]) for place in (0, 1))
            found.append(Expert(gate, up, linear_of(second.t(), experts.down_proj_bias.data[index])))
        else:
            gate, up = (linear_of(half, None) for half in first.chunk(2))
            found.append(Expert(gate, up, linear_of(second, None)))
    return found


def linear_of(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """A linear layer with a weight and a bias."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.contiguous(), requires_grad=False)
    return linear
