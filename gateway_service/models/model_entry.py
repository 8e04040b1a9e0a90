"""A served model: its names, and the targets that its requests are divided among."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TargetEntry:
    """Verifiers with one target model."""

    verifiers: tuple[str, ...]
    """Addresses, HOST:PORT, each optionally with ?weight=NUMBER."""
    share: float = 1.0
    """Share of the new requests, relative to the other targets of the name; 0 gets none."""


@dataclass(frozen=True)
class ModelEntry:
    """One model as clients see it."""

    names: tuple[str, ...]
    """The name and its aliases; without any, the verifiers' own name of the model."""
    targets: tuple[TargetEntry, ...]
    """At least one target, with a share above 0."""
