"""The hidden states between layers that a host engine gives of its target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from draftwire_core.engine.engine.feature_streams import FeatureKind


@dataclass(frozen=True, slots=True)
class FeatureTaps:
    """The layers that a host engine's target is tapped before, and the target itself, as a TargetShape."""

    tapped: tuple[int, ...]
    """Ascending; the number of layers stands for what leaves the last one."""
    architecture: str
    layers: int
    hidden_size: int
    dtype: torch.dtype
    device: torch.device
    setting: str
    """Name of the setting that chooses the layers, for messages."""


class FeatureRows(NamedTuple):
    """Features of consecutive committed tokens of a request, on the host."""

    first_position: int
    by_kind: Mapping[FeatureKind, torch.Tensor]
    """[tokens, width] each."""
