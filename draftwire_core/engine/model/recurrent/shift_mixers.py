"""The mixers of RWKV, which mix each token with the one before it, and a mean of all values (Peng et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from draftwire_core.engine.kernels.recurrent.recurrence_shape import RecurrenceShape, RecurrenceWeights
from draftwire_core.engine.model.linear.row_exact import in_whole_vectors
from draftwire_core.engine.model.recurrent.mixer import (
    Advance,
    Mixer,
    MixerRecurrence,
    head_of,
    no_gates,
    without_convolution,
)


def _shift(width: int) -> MixerRecurrence:
    """The states of the token before each one, by a convolution."""
    weight = torch.stack([torch.ones(width), torch.zeros(width)])
    return MixerRecurrence(RecurrenceShape(width, 2, activates=False), RecurrenceWeights(weight))


def _mixtures(hidden: torch.Tensor, shares: Sequence[torch.Tensor], advance: Advance) -> list[torch.Tensor]:
    """Mixtures of each token's states with those of the token before it, [rows, width] each. shares: of its own"""
    before = advance(0, hidden, no_gates(hidden)).to(hidden.dtype)
    return [hidden * share + before * (1 - share) for share in (each.flatten() for each in shares)]


class RwkvAttentionMixer(Mixer):
    """The time mixing of RWKV: a mean of all values, weighted by keys, that fades with the distance."""

    returns_pair = True

    def __init__(self, module: nn.Module):
        self._module = module
        width = module.attention_hidden_size
        head = head_of(width)
        rates, bonuses = -module.time_decay.detach().float().exp(), module.time_first.detach().float()
        self.recurrences = (
            _shift(module.key.in_features),
            MixerRecurrence(
                RecurrenceShape(
                    channels=2 * width,
                    taps=1,
                    activates=False,
                    value_heads=width // head,
                    key_heads=width // head,
                    key_dim=3,
                    value_dim=head,
                    value_at=width,
                    decays="mean",
                ),
                RecurrenceWeights(
                    without_convolution(2 * width),
                    rates=torch.stack([each.view(-1, head) for each in (rates, bonuses, rates)], 1).contiguous(),
                ),
            ),
        )

    def mix(self, hidden: torch.Tensor, advance: Advance) -> torch.Tensor:
        """See Mixer."""
        module = self._module
        shares = module.time_mix_key, module.time_mix_value, module.time_mix_receptance
        keys, values, gates = _mixtures(hidden, shares, advance)
        opened = in_whole_vectors(torch.sigmoid, module.receptance(gates))
        inputs = torch.cat([module.key(keys), module.value(values)], 1)
        results = advance(1, inputs, no_gates(hidden))
        out: torch.Tensor = module.output(opened * results.flatten(1).to(hidden.dtype))
        return out


class RwkvForwardMixer(Mixer):
    """The channel mixing of RWKV: a feed-forward block of mixtures."""

    returns_pair = True

    def __init__(self, module: nn.Module):
        self._module = module
        self.recurrences = (_shift(module.key.in_features),)

    def mix(self, hidden: torch.Tensor, advance: Advance) -> torch.Tensor:
        """See Mixer."""
        module = self._module
        keys, gates = _mixtures(hidden, (module.time_mix_key, module.time_mix_receptance), advance)
        opened = in_whole_vectors(torch.sigmoid, module.receptance(gates))
        out: torch.Tensor = opened * module.value(torch.square(torch.relu(module.key(keys))))
        return out
