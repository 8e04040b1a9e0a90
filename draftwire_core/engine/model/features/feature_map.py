"""The map from hidden states of some of the target's layers to one feature a token.

EAGLE-3 (Li et al., arXiv 2503.01840, section 3.1) and DFlash map the states of several layers by one linear layer
before they draft from them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

_LEAST_WEIGHT = 2.0**-40
"""Smaller weights are 0: they change no feature, and products with them would be denormal, which processors compute a
hundred times slower. A product of two such weights, of a norm and of the map, is far from denormal."""

_CHECKED_AT_ONCE = 1 << 20
"""Weights that are checked at once: each check needs several times their memory."""


@dataclass(frozen=True, slots=True)
class FeatureShape:
    """The computation of a feature map."""

    states: int
    """Number of layers whose states are read."""
    hidden_size: int
    """Elements of a state."""
    width: int
    """Elements of a feature."""
    norm_states: bool = False
    """Whether an RMS norm over all states side by side comes before the linear map."""
    norm_each_state: bool = False
    """Whether each layer's states have an RMS norm of their own before the linear map."""
    norm_features: bool = False
    """Whether an RMS norm comes after the linear map."""
    unmapped: bool = False
    """Whether there is no linear map; features are then as wide as the states side by side."""
    epsilon: float = 1e-6
    """The epsilon that norms add to the mean of squares."""

    @property
    def weights(self) -> int:
        """Number of weights in all."""
        read = self.states * self.hidden_size
        mapping = 0 if self.unmapped else self.width
        return read * (self.norm_states + self.norm_each_state + mapping) + self.width * self.norm_features


class FeatureMap(nn.Module):
    """Maps hidden states to features."""

    def __init__(self, shape: FeatureShape):
        """Makes the map with random weights. Raises ValueError for both kinds of norms before the linear map, and for
        a width that needs one if there is none."""
        super().__init__()
        if shape.norm_states and shape.norm_each_state:
            raise ValueError("norm_states and norm_each_state exclude each other")
        read, eps = shape.states * shape.hidden_size, shape.epsilon
        if shape.unmapped and shape.width != read:
            raise ValueError(f"features without a map are {read} wide, not {shape.width}")
        self.shape = shape
        self.input_norm = LlamaRMSNorm(read, eps) if shape.norm_states else None
        each = [LlamaRMSNorm(shape.hidden_size, eps) for _ in range(shape.states)] if shape.norm_each_state else None
        self.fc_norm = nn.ModuleList(each) if each is not None else None
        self.fc = None if shape.unmapped else nn.Linear(read, shape.width, bias=False)
        self.output_norm = LlamaRMSNorm(shape.width, eps) if shape.norm_features else None

    def forward(self, read: torch.Tensor) -> torch.Tensor:
        """read: the layers' states side by side, [..., states * hidden size] -> features [..., width]"""
        if self.input_norm is not None:
            read = self.input_norm(read)
        if self.fc_norm is not None:
            parts = read.chunk(len(self.fc_norm), dim=-1)
            read = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        mapped: torch.Tensor = read if self.fc is None else self.fc(read)
        return mapped if self.output_norm is None else self.output_norm(mapped)

    def weight_bytes(self, size: int) -> Iterator[bytes]:
        """Yields all weights as bytes, in parts of at most `size`: of the norms before the linear map, of the map,
        row by row, of the norm after it."""
        for parameter in self.parameters():
            values = parameter.detach().cpu().contiguous().flatten().view(torch.uint8)
            for start in range(0, len(values), size):
                yield values[start : start + size].numpy().tobytes()

    def digest(self) -> str:
        """Returns the SHA-256 (hex) of all weights."""
        digest = hashlib.sha256()
        for part in self.weight_bytes(1 << 20):
            digest.update(part)
        return digest.hexdigest()

    @classmethod
    def of(cls, shape: FeatureShape, weights: bytearray, dtype: torch.dtype) -> FeatureMap:
        """Makes the map from its weights as `weight_bytes` gives them; tiny ones become 0. Raises ValueError for
        another number of bytes, and for weights that are not finite."""
        if len(weights) != shape.weights * dtype.itemsize:
            raise ValueError(f"{shape.weights} weights of {dtype} take {shape.weights * dtype.itemsize} bytes")
        with torch.device("meta"):
            made = cls(shape)
        values, start = torch.frombuffer(weights, dtype=dtype) if weights else torch.empty(0, dtype=dtype), 0
        for part in values.split(_CHECKED_AT_ONCE):
            if not part.isfinite().all():
                raise ValueError("weights must be finite numbers")
            part.masked_fill_(part.abs() < _LEAST_WEIGHT, 0)
        found = {}
        for name, parameter in made.named_parameters():
            found[name] = values[start : start + parameter.numel()].view(parameter.shape)
            start += parameter.numel()
        made.load_state_dict(found, assign=True)
        made.requires_grad_(False).eval()
        return made
