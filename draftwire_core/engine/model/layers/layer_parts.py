"""The parts of a decoder layer that compiled code computes, in blocks of which a layer may lack any."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines [1, rows, dim]."""

Norm = tuple[torch.Tensor, float]
"""The weight of a root mean square norm, float32, and its epsilon."""

HeadNorms = tuple[torch.Tensor, torch.Tensor | None, float]
"""Weights of the norms of queries and keys, of each head or of all at once, float32, and the epsilon of both."""


@dataclass(frozen=True, slots=True)
class AttentionParts:
    """Attention. Linear layers have `in_features` and `out_features`; those that can be compiled have a `bias` and a
    compiled `product`."""

    project: nn.Module
    output: nn.Module
    input_norm: Norm | None
    output_norm: Norm | None
    head_norms: HeadNorms | None
    value_norm: torch.Tensor | None
    """The weight of the norm of each head's values, with the epsilon of the other heads."""
    sinks: torch.Tensor | None
    """Extra scores without values, float32 [heads]."""
    kv_heads: int
    dim: int
    rotary: int
    """Leading elements of a head that are rotated; 0 for none."""
    scaling: float
    window: int | None
    softcap: float | None
    gated: bool
    """Whether each head's query is followed by a gate of its results."""
    kv_parts: int
    """Projections next to queries: 2 for keys and values, 1 for keys that are the values, too, 0 for none."""
    kv_layer: int
    """The layer under which the keys and values that it sees are cached."""

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return int(self.output.in_features) // self.dim


@dataclass(frozen=True, slots=True)
class DeltaParts:
    """A gated delta net in place of attention."""

    module: nn.Module
    """The module of transformers, which knows its recurrence once the model has packed mixers."""
    project: nn.Module
    output: nn.Module
    input_norm: Norm | None
    output_norm: Norm | None
    norm: Norm
    """Of each head's results."""
    rates: torch.Tensor
    """Of decays, at most 0, float32 [value heads]."""
    bias: torch.Tensor
    """The increase of the steps of decays, float32 [value heads]."""
    places: tuple[int, ...]
    """In a row of projected elements: of the first key head's query, key, values, gates, steps and strengths."""
    strides: tuple[int, ...]
    """From the places of a key head to those of the next."""
    strength: float
    """The factor of betas."""


@dataclass(frozen=True, slots=True)
class ForwardParts:
    """A gated feed-forward block."""

    gate_and_up: nn.Module
    down: nn.Module
    input_norm: Norm | None
    output_norm: Norm | None


@dataclass(frozen=True, slots=True)
class TokenParts:
    """The block of inputs that depend on a token's id and on the layer; the residual stream gates them."""

    gate: nn.Module
    output: nn.Module
    output_norm: Norm | None


@dataclass(frozen=True, slots=True)
class FeatureParts:
    """The reading of features by the first layer of an EAGLE-3 network (`drafters/eagle/eagle_model.py`)."""

    norm: Norm
    normed_residual: bool
    """Whether the residual stream begins with the normed features, or else with the features themselves."""


@dataclass(frozen=True, slots=True)
class LayerParts:
    """The parts of a decoder layer. All norms after the first have the same epsilon."""

    attention: AttentionParts | None
    net: DeltaParts | None
    forward: ForwardParts | None
    tokens: TokenParts | None
    features: FeatureParts | None
    dtype: torch.dtype
    """The model's."""
    width: int
    multiplier: float
    """Of the outputs of the blocks."""
    factor: float
    """Of the residual stream after the last block."""
    gate: str
    """The activation of the gates, one of GATES."""

    @property
    def linears(self) -> tuple[nn.Module, ...]:
        """The linear layers of all blocks."""
        found: tuple[nn.Module, ...] = ()
        if self.attention is not None:
            found += self.attention.project, self.attention.output
        if self.net is not None:
            found += self.net.project, self.net.output
        if self.forward is not None:
            found += self.forward.gate_and_up, self.forward.down
        if self.tokens is not None:
            found += self.tokens.gate, self.tokens.output
        return found
