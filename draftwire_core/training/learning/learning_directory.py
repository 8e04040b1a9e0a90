"""The state of learning on disk: what drafts, what it was made of, and what has been learned."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from draftwire import LearnerActivity, Learning, LearningRound

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
    last_round: LearningRound | None = None
    """The last round that was decided."""

    @classmethod
    def read(cls, directory: Path) -> LearningState | None:
        """Returns the state of the last run; None if there is none, or a damaged one."""
        try:
            found = {"last_round": None} | json.loads((directory / _FILE).read_text())  # earlier files have none
            if found["last_round"] is not None:
                ended_at = datetime.fromisoformat(found["last_round"]["ended_at"])
                found["last_round"] = LearningRound(**found["last_round"] | {"ended_at": ended_at})
            return cls(**{each.name: found[each.name] for each in fields(cls)})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, directory: Path) -> None:
        """Writes the state. Raises OSError."""
        new = (directory / _FILE).with_suffix(".new")
        new.write_text(json.dumps(asdict(self), indent=2, default=_text_of) + "\n")
        new.replace(directory / _FILE)

    def report(self, activity: LearnerActivity, collected_tokens: int) -> Learning:
        """Returns what the verifier shows of it. collected_tokens: output tokens stored by now."""
        return Learning(activity, self.promoted, collected_tokens, self.version, self.before, self.now, self.last_round)


def _text_of(value: Any) -> str:
    assert isinstance(value, datetime)
    return value.isoformat()
