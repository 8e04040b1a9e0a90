"""Mixers of two recurrences: a convolution, and a scan whose gates come from the convolution's results."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from draftwire_core.engine.kernels.recurrent.recurrence_shape import RecurrenceShape, RecurrenceWeights
from draftwire_core.engine.model.attention.packed_attention import current_pass
from draftwire_core.engine.model.linear.row_exact import RowExactLinear, in_whole_vectors
from draftwire_core.engine.model.recurrent.mixer import (
    Advance,
    Mixer,
    MixerRecurrence,
    convolution_of,
    head_of,
    no_gates,
    silu,
    unit_rms,
    without_convolution,
)

_ONES = 16
"""Channels with ones in place of a key and a query, a vector of them."""


def _of_convolution(convolution: nn.Conv1d, activates: bool) -> MixerRecurrence:
    shape = RecurrenceShape(convolution.in_channels, convolution.kernel_size[0], activates)
    return MixerRecurrence(shape, convolution_of(convolution))


class MambaMixer(Mixer):
    """Mamba (Gu and Dao 2023): every element of the state decays at its own rate. Falcon-Mamba and Jamba norm steps,
    keys and queries."""

    def __init__(self, module: nn.Module):
        self._module = module
        values, keys = module.intermediate_size, module.ssm_state_size
        head = head_of(values)
        rates = -module.A_log.detach().float().exp()
        self.recurrences = (
            _of_convolution(module.conv1d, activates=True),
            MixerRecurrence(
                RecurrenceShape(
                    channels=values + 2 * keys,
                    taps=1,
                    activates=False,
                    value_heads=values // head,
                    key_heads=1,
                    key_dim=keys,
                    value_dim=head,
                    key_at=values,
                    query_at=values + keys,
                    decays="rate",
                ),
                RecurrenceWeights(
                    without_convolution(values + 2 * keys),
                    direct=module.D.detach().float().contiguous(),
                    rates=rates.view(-1, head, keys).transpose(1, 2).contiguous(),
                ),
            ),
        )
        self._sizes = [module.time_step_rank, keys, keys]
        self._bias = module.dt_proj.bias.detach()
        self._norms = [getattr(module, f"{name}_layernorm", None) for name in ("dt", "b", "c")]
        module.dt_proj = _TurnedLinear(module.dt_proj)

    def mix(self, hidden: torch.Tensor, advance: Advance) -> torch.Tensor:
        """See Mixer."""
        module = self._module
        inputs, gate = module.in_proj(hidden).chunk(2, 1)
        values = advance(0, inputs.contiguous(), no_gates(hidden))
        values = values.to(hidden.dtype)
        parts = module.x_proj(values).split(self._sizes, 1)
        steps, keys, queries = (_normed(part, norm) for part, norm in zip(parts, self._norms, strict=True))
        steps = module.dt_proj.linear(steps) + self._bias.to(hidden.dtype)
        steps = in_whole_vectors(nn.functional.softplus, steps).float()
        results = advance(1, torch.cat([values, keys, queries], 1), steps)
        out: torch.Tensor = module.out_proj((results.flatten(1) * silu(gate.float().contiguous())).to(hidden.dtype))
        return out


def _normed(part: torch.Tensor, norm: nn.Module | None) -> torch.Tensor:
    if norm is None:
        return part
    eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
    normal = unit_rms(part.float(), float(eps)).to(part.dtype)
    weight = norm._parameters.get("weight")  # Falcon-Mamba's are no parameters, and not used
    return normal if weight is None else weight * normal


class _TurnedLinear(nn.Module):
    """A linear layer whose weight transformers' code multiplies by columns, and whose bias it adds elsewhere."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.bias = linear.bias
        self.linear = nn.Linear(linear.in_features, linear.out_features, bias=False, device="meta")
        self.linear.weight = linear.weight

    @property
    def weight(self) -> _TurnedWeight:
        """The weight, for a product with columns."""
        return _TurnedWeight(self.linear)


class _TurnedWeight:
    def __init__(self, linear: nn.Module):
        self._linear = linear

    def __matmul__(self, columns: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self._linear(columns.transpose(1, 2)).transpose(1, 2)
        return product


class LruMixer(Mixer):
    """Real-gated linear recurrent unit (De et al. 2024): RecurrentGemma. An element of the state is a channel's."""

    returns_pair = True

    def __init__(self, module: nn.Module):
        self._module = module
        width = module.lru_width
        head = head_of(width)
        self.recurrences = (
            _of_convolution(module.conv_1d, activates=False),
            MixerRecurrence(
                RecurrenceShape(
                    channels=width + _ONES,
                    taps=1,
                    activates=False,
                    value_heads=width // head,
                    key_heads=1,
                    key_dim=1,
                    value_dim=head,
                    key_at=width,
                    query_at=width,
                    decays="value",
                ),
                RecurrenceWeights(without_convolution(width + _ONES)),
            ),
        )
        gates: Any = module.rg_lru
        self._decay = -8.0 * nn.functional.softplus(gates.recurrent_param.detach())
        self._input_gate = _BlockLinear(gates.input_gate_weight, gates.input_gate_bias)
        self._recurrent_gate = _BlockLinear(gates.recurrent_gate_weight, gates.recurrent_gate_bias)

    def mix(self, hidden: torch.Tensor, advance: Advance) -> torch.Tensor:
        """See Mixer."""
        module, dtype = self._module, hidden.dtype
        outer = module.act_fn(module.linear_y(hidden))
        values = advance(0, module.linear_x(hidden), no_gates(hidden)).to(dtype)
        opened = in_whole_vectors(torch.sigmoid, self._input_gate(values))
        log_decay = in_whole_vectors(torch.sigmoid, self._recurrent_gate(values)) * self._decay.to(dtype)
        decay = in_whole_vectors(torch.exp, log_decay)
        share = torch.sqrt(1 - in_whole_vectors(torch.exp, 2 * log_decay))
        first = current_pass().packed_batch.positions.unsqueeze(1) == 0
        gated = values * opened * torch.where(first, torch.ones_like(share), share)
        inputs = torch.cat([gated, gated.new_ones(len(gated), _ONES)], 1)
        results = advance(1, inputs, torch.where(first, torch.zeros_like(decay), decay).float())
        out: torch.Tensor = module.linear_out(results.flatten(1).to(dtype) * outer)
        return out


class _BlockLinear:
    """A linear layer of blocks on the diagonal, one for each head."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor):
        """weight [heads, inputs, outputs], bias [heads, outputs]"""
        self._blocks = [
            RowExactLinear(block.detach().t().contiguous(), part.detach().contiguous())
            for block, part in zip(weight, bias, strict=True)
        ]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """rows [rows, heads * inputs] -> [rows, heads * outputs]"""
        parts = rows.chunk(len(self._blocks), 1)
        return torch.cat([block(part.contiguous()) for block, part in zip(self._blocks, parts, strict=True)], 1)
