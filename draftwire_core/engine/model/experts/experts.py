"""Mixtures of experts for CPUs, with the same linear layers as other models and the same bits for a row in any batch.

Rows are grouped by expert, and each expert multiplies its rows at once. A row adds the outputs of its experts in the
order of their ranks, so that neither the other rows nor the experts they take change a bit. Routers stay transformers'
own, with a packed weight under their code.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import nn
from transformers.activations import ACT2FN

from draftwire_core.engine.kernels.layer_ops import gate
from draftwire_core.engine.kernels.library import BF16, LANES, gemm_kind, library, loaded
from draftwire_core.engine.kernels.structs import ExpertRows
from draftwire_core.engine.model.experts.row_exact_functions import RowExactFunctions
from draftwire_core.engine.model.linear.linear_structs import LinearStructs, are_compiled
from draftwire_core.engine.model.linear.linear_weight import MakeLinear, joined
from draftwire_core.engine.model.linear.packed_weight import PackedWeight


class ExpertLinear(nn.Module):
    """The linear layers of several experts, all with the same sizes.

    Each expert multiplies its rows at once, and those that have none do nothing. Where the products are compiled code,
    one call multiplies all rows.
    """

    def __init__(self, linears: Iterable[nn.Module]):
        """linears: those of all experts, in their order"""
        super().__init__()
        self.linears = nn.ModuleList(linears)
        first = self.linears[0]
        self.in_features, self.out_features = first.in_features, first.out_features
        self._structs = LinearStructs(list(self.linears)) if are_compiled(list(self.linears)) else None

    def forward(self, rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """rows [rows, in_features]; experts: that of each row, int64 [rows], ascending -> [rows, out_features]"""
        if self._structs is not None:
            return self._multiply(self._structs, rows.contiguous(), experts)
        taken, counts = (each.tolist() for each in experts.unique_consecutive(return_counts=True))
        parts = [self.linears[expert](part) for expert, part in zip(taken, rows.split(counts), strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _multiply(self, structs: LinearStructs, rows: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        out = rows.new_empty(len(rows), self.out_features)
        working = torch.empty(rows.shape, dtype=torch.float32)
        call = ExpertRows(
            ctypes.addressof(structs.array), experts.data_ptr(), rows.data_ptr(), out.data_ptr(), working.data_ptr(),
            len(rows), self.in_features, self.out_features,
        )  # fmt: skip
        loaded().draftwire_expert_rows(ctypes.addressof(call), gemm_kind(), torch.get_num_threads())
        return out


_SILU = type(ACT2FN["silu"])


class Expert(NamedTuple):
    """The linear layers of an expert, those of transformers or of a checkpoint."""

    gate_and_up: Sequence[nn.Module]
    """Layers with the same inputs, whose outputs follow each other as the activation takes them; of experts without a
    gate, `up` alone."""
    down: nn.Module


class StoredExperts(nn.Module):
    """Experts as they lie in a checkpoint. They are replaced before they run."""

    def __init__(self, experts: Sequence[Expert], like: nn.Module):
        """like: the experts of transformers, for their activation"""
        super().__init__()
        self._experts = list(experts)
        self.layers = nn.ModuleList(layer for expert in experts for layer in (*expert.gate_and_up, expert.down))
        self._like = (without_weights(like),)  # in a tuple, so that nobody gives it weights

    @property
    def experts(self) -> list[Expert]:
        """The experts."""
        return self._experts

    @property
    def library_experts(self) -> nn.Module:
        """The experts of transformers, without weights."""
        return self._like[0]


class Experts(nn.Module):
    """Experts with linear layers of any kind."""

    def __init__(self, experts: Sequence[Expert], library_experts: nn.Module, make_linear: MakeLinear):
        """library_experts: those of transformers, without weights"""
        super().__init__()
        self.gate_and_up = ExpertLinear(joined(expert.gate_and_up, make_linear) for expert in experts)
        self.down = ExpertLinear(joined([expert.down], make_linear) for expert in experts)
        self.count = len(experts)
        self.library_experts = library_experts
        self._fused = _can_fuse(library_experts, self.gate_and_up.out_features)

    def forward(self, hidden: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """hidden [..., width]; chosen: each row's experts by rank, int64 [rows, ranks]; shares [rows, ranks] -> the
        shape of hidden"""
        with torch._C.DisableTorchFunction():  # RowExactFunctions, which would look at each call
            rows = hidden.reshape(-1, hidden.shape[-1])
            ranks = chosen.shape[1]
            by_expert, order = chosen.flatten().sort(stable=True)
            inputs = rows.index_select(0, order.div(ranks, rounding_mode="floor"))
            between = self.gate_and_up(inputs, by_expert)
        activated = self._activated(between)
        with torch._C.DisableTorchFunction():
            outputs = self.down(activated, by_expert)
        if self.library_experts.has_post_expert_norm:
            outputs = self.library_experts.post_expert_norm(outputs)
        with torch._C.DisableTorchFunction():
            parts = torch.empty_like(outputs, dtype=torch.float32)
            parts[order] = outputs.float()
            parts = parts.unflatten(0, (-1, ranks)) * shares[..., None].float()
            total = parts[:, 0]
            for rank in range(1, ranks):
                total = total + parts[:, rank]
            return total.to(hidden.dtype).view_as(hidden)

    def _activated(self, between: torch.Tensor) -> torch.Tensor:
        if self._fused and between.dtype in BF16:
            with torch._C.DisableTorchFunction():
                return gate(between)
        with RowExactFunctions():
            if not self.library_experts.has_gate:
                activated: torch.Tensor = self.library_experts.act_fn(between)
                return activated
            gated: torch.Tensor = self.library_experts._apply_gate(between)
            return gated


class SortedExperts(nn.Module):
    """One linear layer of each expert, for code that sorts rows by expert on its own."""

    def __init__(self, weights: torch.Tensor, make_linear: MakeLinear):
        """weights [experts, outputs, inputs]"""
        super().__init__()
        self.linear = ExpertLinear(joined([linear_of(weight, None)], make_linear) for weight in weights)
        self.count = len(weights)

    def forward(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """rows [rows, inputs], sorted by expert; counts: number of rows of each expert -> [rows, outputs]"""
        product: torch.Tensor = self.linear(rows, torch.arange(self.count).repeat_interleave(torch.tensor(counts)))
        return product


def replace_experts(model: nn.Module, make_linear: MakeLinear, make_router: MakeLinear) -> None:
    """Replaces the mixtures of experts of `model`, in place.

    make_linear: for experts. make_router: for routers, whose weights are not quantised.
    """
    # Holds no experts, so that each layer's weights are freed when they are replaced.
    places = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if is_experts(child) or isinstance(child, StoredExperts) or type(child).__name__ in _OTHERS
    ]
    for parent, name in places:
        setattr(parent, name, _replaced(getattr(parent, name), make_linear))
        _replace_routers(parent, getattr(parent, name).count, make_router)


def _replace_routers(block: nn.Module, count: int, make_linear: MakeLinear) -> None:
    """Packs the weights of the router of `count` experts, which is in the same block of transformers' code as they."""
    for module in list(block.modules()):
        weight = module._parameters.get("weight")
        if weight is not None and weight.dim() == 2 and len(weight) == count:
            PackedWeight.replace(module, make_linear)


def is_experts(module: nn.Module) -> bool:
    """Whether a module is experts, with weights, of a decoder of transformers, most of which share an interface."""
    return hasattr(module, "has_post_expert_norm") and "down_proj" in module._parameters


def _replaced(experts: nn.Module, make_linear: MakeLinear) -> nn.Module:
    if isinstance(experts, StoredExperts):
        return Experts(experts.experts, experts.library_experts, make_linear)
    if is_experts(experts):
        apart = _experts_of(experts)
        return Experts(apart, without_weights(experts), make_linear)
    return _OTHERS[type(experts).__name__](experts, make_linear)


def _can_fuse(library_experts: nn.Module, outputs: int) -> bool:
    """Whether compiled code can activate what an expert's first linear layer returns."""
    gate = getattr(type(library_experts), "_apply_gate", None)
    return (
        library() is not None
        and library_experts.has_gate
        and gate is not None
        and gate.__module__ in (__name__, "transformers.integrations.moe")  # no gate of the architecture's own
        and isinstance(library_experts.act_fn, _SILU)
        and outputs % (2 * LANES) == 0
    )


def _experts_of(experts: nn.Module) -> list[Expert]:
    """Takes the experts of transformers apart."""
    first = "gate_up_proj" if experts.has_gate else "up_proj"
    return [
        Expert([gate_and_up], down)
        for gate_and_up, down in zip(_linears_of(experts, first), _linears_of(experts, "down_proj"), strict=True)
    ]


def _linears_of(experts: nn.Module, name: str) -> list[nn.Linear]:
    weights = getattr(experts, name).data
    biases = getattr(experts, f"{name}_bias").data if experts.has_bias else [None] * len(weights)
    return [
        linear_of(weight.t() if experts.is_transposed else weight, bias)
        for weight, bias in zip(weights, biases, strict=True)
    ]


def without_weights(experts: nn.Module) -> nn.Module:
    """The experts of transformers without their weights, for their activation."""
    experts._parameters.clear()
    return experts


class _GatedActivation(nn.Module):
    """The activation of experts outside of transformers' interface."""

    has_gate = True
    has_post_expert_norm = False

    def __init__(self, act_fn: nn.Module):
        super().__init__()
        self.act_fn = act_fn

    def _apply_gate(self, gate_and_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_and_up.chunk(2, dim=-1)
        activated: torch.Tensor = self.act_fn(gate)
        return activated * up


def _dbrx(experts: nn.Module, make_linear: MakeLinear) -> nn.Module:
    stacked = experts.mlp
    gates, ups, downs = (
        weight.data.unflatten(0, (experts.num_experts, -1)) for weight in (stacked.w1, stacked.v1, stacked.w2)
    )
    apart = [
        Expert([linear_of(gate, None), linear_of(up, None)], linear_of(down.t(), None))
        for gate, up, down in zip(gates, ups, downs, strict=True)
    ]
    return Experts(apart, _GatedActivation(stacked.activation_fn), make_linear)


_OTHERS: dict[str, Callable[[nn.Module, MakeLinear], nn.Module]] = {
    "DbrxExperts": _dbrx,
    "JetMoeParallelExperts": lambda experts, make_linear: SortedExperts(experts.weight.data, make_linear),
}
"""Classes of experts that do not share the interface, each with a function that makes what replaces them."""


def linear_of(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """A linear layer with a weight and a bias."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.contiguous(), requires_grad=False)
    return linear
