"""The engine that an adapter adds drafters to, by its names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostEngine:
    """A host engine's names."""

    name: str
    """Its name in sentences."""
    key: str
    """Its name in metrics."""
