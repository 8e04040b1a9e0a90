"""Mixers with one recurrence, whose gates come from hidden states: delta nets, short convolutions, Mamba-2."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from draftwire_core.engine.kernels.layer_ops import gate as activate
from draftwire_core.engine.kernels.layer_ops import rms_norm
from draftwire_core.engine.kernels.library import BF16, LANES, library
from draftwire_core.engine.kernels.recurrent.recurrence_shape import RecurrenceShape
from draftwire_core.engine.model.linear.row_exact import in_whole_vectors
from draftwire_core.engine.model.recurrent.mixer import OneRecurrence, Rest, convolution_of, silu, unit_rms


class DeltaMixer(OneRecurrence):
    """Gated delta net (Yang et al. 2024): Qwen3-Next, Qwen3.5, OLMo hybrid."""

    def __init__(self, module: nn.Module, read: Callable[[nn.Module, torch.Tensor], tuple[torch.Tensor, ...]]):
        """read: returns queries, keys and values joined [rows, channels], output gates [rows, values], and what decays
        and betas are computed from [rows, value heads]."""
        self._read = read
        shape = RecurrenceShape(
            channels=2 * module.key_dim + module.value_dim,
            taps=module.conv_kernel_size,
            value_heads=module.num_v_heads,
            key_heads=module.num_k_heads,
            key_dim=module.head_k_dim,
            value_dim=module.head_v_dim,
            key_at=module.key_dim,
            value_at=2 * module.key_dim,
            normalises=True,
            eps=1e-6,
            scale=module.head_k_dim**-0.5,
            corrects=True,
        )
        super().__init__(module, shape, convolution_of(module.conv1d))
        self._rates = -module.A_log.detach().float().exp()
        self._bias = module.dt_bias.detach()
        self._twice = bool(getattr(module, "allow_neg_eigval", False))
        self._norm = module.o_norm if hasattr(module, "o_norm") else module.norm
        self._factors = self._norm.weight.detach().float().contiguous()
        self._output = "o_proj" if hasattr(module, "o_proj") else "out_proj"

    def project(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Rest]:
        inputs, gate, steps, strengths = self._read(self.module, hidden)
        beta = in_whole_vectors(torch.sigmoid, strengths.contiguous()).float()
        rates = self._rates * in_whole_vectors(nn.functional.softplus, steps.float() + self._bias)
        decay = in_whole_vectors(torch.exp, rates)
        return inputs, torch.cat([decay, 2 * beta if self._twice else beta], 1), gate

    def finish(self, results: torch.Tensor, inputs: torch.Tensor, rest: Rest) -> torch.Tensor:
        assert rest is not None
        eps = float(self._norm.variance_epsilon)
        if self.shape.value_dim % (2 * LANES) == 0 and inputs.dtype in BF16 and library() is not None:
            gates = rest.reshape(-1, self.shape.value_dim).float()
            normal = rms_norm(results.view(gates.shape), self._factors, eps)
            gated = activate(torch.cat([gates, normal], 1)).view(len(results), -1)
        else:
            normal = unit_rms(results.to(inputs.dtype).float(), eps).to(inputs.dtype)
            gated = (self._norm.weight * normal * silu(rest.reshape(results.shape).float())).flatten(1)
        out: torch.Tensor = getattr(self.module, self._output)(gated.to(inputs.dtype))
        return out


def interleaved(module: nn.Module, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Projections whose outputs are sorted by key head."""
    rows, key, value = len(hidden), module.head_k_dim, module.head_v_dim
    shared = module.num_v_heads // module.num_k_heads
    joined, rest = _projected(module, hidden, ("in_proj_qkvz", "in_proj_ba"))
    query, keys, values, gate = joined.reshape(rows, module.num_k_heads, -1).split(
        [key, key, shared * value, shared * value], 2
    )
    strengths, steps = rest.reshape(rows, module.num_k_heads, -1).split([shared, shared], 2)
    inputs = torch.cat([query.flatten(1), keys.flatten(1), values.flatten(1)], 1)
    return inputs, gate.flatten(1), steps.flatten(1), strengths.flatten(1)


def joined(module: nn.Module, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Projections of which queries, keys and values are one."""
    return _projected(module, hidden, ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b"))


def _projected(module: nn.Module, hidden: torch.Tensor, names: tuple[str, ...]) -> tuple[torch.Tensor, ...]:
    """The outputs of the named projections, of one product where they are joined (`joined_projections.py`)."""
    layers = [getattr(module, name) for name in names]
    whole = getattr(module, "joined_projection", None)
    if whole is None:
        return tuple(layer(hidden) for layer in layers)
    # Compiled products of fused layers have float32 results.
    return tuple(whole(hidden).to(hidden.dtype).split([layer.out_features for layer in layers], 1))


def separate(module: nn.Module, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A projection each."""
    inputs = torch.cat([module.q_proj(hidden), module.k_proj(hidden), module.v_proj(hidden)], 1)
    return inputs, module.g_proj(hidden), module.a_proj(hidden), module.b_proj(hidden)


class KimiMixer(OneRecurrence):
    """Kimi delta attention: a gated delta net with a decay for each element of the key."""

    def __init__(self, module: nn.Module):
        heads, dim = module.num_heads, module.head_dim
        shape = RecurrenceShape(
            channels=3 * heads * dim,
            taps=module.conv_kernel_size,
            value_heads=heads,
            key_heads=heads,
            key_dim=dim,
            value_dim=dim,
            key_at=heads * dim,
            value_at=2 * heads * dim,
            normalises=True,
            eps=1e-6,
            scale=dim**-0.5,
            corrects=True,
            decay_each_key=True,
        )
        super().__init__(module, shape, convolution_of(module.conv1d))
        forget = module.forget_gate
        self._rates = -forget.A_log.detach().float().exp().flatten().repeat_interleave(dim)
        self._bias = forget.dt_bias.detach().float()

    def project(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Rest]:
        module, forget = self.module, self.module.forget_gate
        inputs = torch.cat([module.q_proj(hidden), module.k_proj(hidden), module.v_proj(hidden)], 1)
        steps = forget.f_b_proj(forget.f_a_proj(hidden)).float() + self._bias
        decay = in_whole_vectors(torch.exp, self._rates * in_whole_vectors(nn.functional.softplus, steps))
        beta = in_whole_vectors(torch.sigmoid, module.b_proj(hidden)).float()
        return inputs, torch.cat([decay, beta], 1), module.g_b_proj(module.g_a_proj(hidden))

    def finish(self, results: torch.Tensor, inputs: torch.Tensor, rest: Rest) -> torch.Tensor:
        assert rest is not None
        norm, gate = self.module.o_norm, in_whole_vectors(torch.sigmoid, rest.reshape(results.shape).float())
        normal = unit_rms(results.to(inputs.dtype).float(), float(norm.variance_epsilon))
        out: torch.Tensor = self.module.o_proj((norm.weight.float() * normal * gate).to(inputs.dtype).flatten(1))
        return out


class ShortConvMixer(OneRecurrence):
    """Gated short convolution, without another state: LFM2."""

    def __init__(self, module: nn.Module):
        shape = RecurrenceShape(channels=module.conv.in_channels, taps=module.conv.kernel_size[0], activates=False)
        super().__init__(module, shape, convolution_of(module.conv))

    def project(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Rest]:
        before, after, values = self.module.in_proj(hidden).chunk(3, 1)
        return before * values, hidden.new_empty(len(hidden), 0, dtype=torch.float32), after

    def finish(self, results: torch.Tensor, inputs: torch.Tensor, rest: Rest) -> torch.Tensor:
        assert rest is not None
        out: torch.Tensor = self.module.out_proj(rest * results.to(inputs.dtype))
        return out


class Mamba2Mixer(OneRecurrence):
    """Mamba-2 (Dao and Gu 2024): a state that decays and gets an outer product, without the delta rule's correction."""

    def __init__(self, module: nn.Module):
        values, keys = module.intermediate_size, module.n_groups * module.ssm_state_size
        shape = RecurrenceShape(
            channels=values + 2 * keys,
            taps=module.conv_kernel_size,
            value_heads=module.num_heads,
            key_heads=module.n_groups,
            key_dim=module.ssm_state_size,
            value_dim=module.head_dim,
            key_at=values,
            query_at=values + keys,
        )
        super().__init__(module, shape, convolution_of(module.conv1d, module.D))
        self._rates = -module.A_log.detach().float().exp()
        self._limits = tuple(map(float, module.time_step_limit))
        self._norm = getattr(module, "norm", None)

    def project(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Rest]:
        module, shape = self.module, self.shape
        scaled = hidden * module.ssm_in_multiplier if hasattr(module, "ssm_in_multiplier") else hidden
        projected = module.in_proj(scaled)
        if hasattr(module, "mup_vector"):
            projected = projected * module.mup_vector.flatten()
        gate, inputs, steps = projected.split(
            [projected.shape[1] - shape.channels - shape.value_heads, shape.channels, shape.value_heads], 1
        )
        steps = in_whole_vectors(nn.functional.softplus, steps + module.dt_bias.to(steps.dtype))
        steps = steps.clamp(*self._limits).float()
        return inputs.contiguous(), torch.cat([in_whole_vectors(torch.exp, self._rates * steps), steps], 1), gate

    def finish(self, results: torch.Tensor, inputs: torch.Tensor, rest: Rest) -> torch.Tensor:
        assert rest is not None
        gate, norm, dtype = silu(rest.float().contiguous()), self._norm, inputs.dtype
        mixed = results.flatten(1)
        if isinstance(norm, nn.Module) and hasattr(norm, "variance_epsilon"):
            after = bool(getattr(norm, "norm_before_gate", False))
            values = mixed if after else mixed * gate
            groups = self.shape.key_heads
            values = unit_rms(values.view(len(values), groups, -1), float(norm.variance_epsilon)).flatten(1)
            values = norm.weight * values.to(norm.weight.dtype)
            mixed = values * gate if after else values
        else:
            mixed = mixed * gate
        out: torch.Tensor = self.module.out_proj(mixed.to(dtype))
        return out
