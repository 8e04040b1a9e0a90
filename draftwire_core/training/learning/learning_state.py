"""The state of learning on disk: what drafts, what it was made of, and what has been learned."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

_FILE = "learning.json"


@dataclass
class LearningState:
    """Written after every change, so that the next start goes on from it."""

    target: str
    """Fingerprint of the target."""
    base: str = ""
    """The draft at first: the address of a draft model in the verifier, or the checkpoint of a drafter service."""
    weights: str = "checkpoint"
    """Type of the weights of linear layers that a checkpoint is served with, unless the address of the base says."""
    version: int = 0
    """Number of the last checkpoint."""
    promoted: int = 0
    """Number of the checkpoint that drafts; 0 for the base."""
    drafter: str = ""
    """Name of the drafter that has the traffic."""
    address: str = ""
    """Address of the drafter service that has the traffic; empty for a draft model in the verifier."""
    canary: str = ""
    """Address of the free drafter service; empty for a draft model in the verifier."""
    tokens: int = 0
    """Output tokens that were stored when it learned last."""
    before: float | None = None
    """Agreement of the base on held-out texts, when it was measured first."""
    now: float | None = None
    """Agreement of what drafts on held-out texts, when it was measured last."""

    @classmethod
    def read(cls, directory: Path) -> LearningState | None:
        """Returns the state of the last run; None if there is none, or a damaged one."""
        try:
            found = json.loads((directory / _FILE).read_text())
            return cls(**{each.name: found[each.name] for each in fields(cls)})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, directory: Path) -> None:
        """Writes the state. Raises OSError."""
        new = (directory / _FILE).with_suffix(".new")
        new.write_text(json.dumps(vars(self), indent=2) + "\n")
        new.replace(directory / _FILE)
