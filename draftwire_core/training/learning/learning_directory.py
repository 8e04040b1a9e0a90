"""The directory of a learner: its lock, its state, and the checkpoints that were learned."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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
    def read(cls, directory: Path, tell: Callable[[str], None] = lambda line: None) -> LearningState | None:
        """Returns the state of the last run; None if there is none, or a damaged one, which is told."""
        try:
            found: Any = {"last_round": None} | json.loads((directory / _FILE).read_text())  # earlier files have none
            if found["last_round"] is not None:
                ended_at = datetime.fromisoformat(found["last_round"]["ended_at"])
                found["last_round"] = LearningRound(**found["last_round"] | {"ended_at": ended_at})
            return cls(**{each.name: found[each.name] for each in fields(cls)})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            tell(f"warning: {directory / _FILE} is damaged: learning begins again")
            return None

    def write(self, directory: Path) -> None:
        """Writes the state. Raises OSError."""
        new = (directory / _FILE).with_suffix(".new")
        new.write_text(json.dumps(asdict(self), indent=2, default=_text_of) + "\n")
        new.replace(directory / _FILE)

    def summary(self) -> str:
        """Returns a line about the promoted version, whose round has measured the agreement."""
        first, now = (100 * (each or 0.0) for each in (self.before, self.now))
        return (
            f"v{self.promoted:05d} drafts, as learned before; agreement on held-out texts {first:.1f} % at first, "
            f"{now:.1f} % now"
        )

    def report(self, activity: LearnerActivity, collected_tokens: int) -> Learning:
        """Returns what the verifier shows of it. collected_tokens: output tokens stored by now."""
        return Learning(activity, self.promoted, collected_tokens, self.version, self.before, self.now, self.last_round)


def _text_of(value: Any) -> str:
    assert isinstance(value, datetime)
    return value.isoformat()


class DirectoryLock:
    """Held within its block. The system frees it when the process ends, however that happens."""

    def __init__(self, directory: Path):
        self._directory = directory

    def __enter__(self) -> Self:
        """Takes the lock. Raises ValueError if another process has it."""
        self._file = (self._directory / "lock").open("a")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ValueError(f"--dir: another learner uses {self._directory}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Frees the lock."""
        self._file.close()


_KEPT = 2
"""Checkpoints that stay: the one that drafts, and the one before it."""


class Versions:
    """The checkpoints of a directory: v00001 and so on."""

    def __init__(self, directory: Path):
        self._directory = directory.resolve()

    def path(self, number: int) -> Path:
        """Returns the directory of a checkpoint."""
        return self._directory / f"v{number:05d}"

    def number(self, model: str) -> int | None:
        """Returns the number of the checkpoint that a drafter has loaded; None for another model."""
        path = Path(model)
        digits = path.name.removeprefix("v")
        return int(digits) if path.parent == self._directory and digits.isdecimal() else None

    def tidy(self, promoted: int, candidate: int = 0) -> None:
        """Deletes the checkpoints that nobody needs: unfinished, rejected and old ones.

        promoted: number of the one that drafts; 0 if none does. candidate: number of one that is yet to be tried.
        """
        drafted = [self.path(number) for number in range(1, promoted + 1) if self.path(number).is_dir()]
        kept = {*drafted[-_KEPT:], self.path(candidate)}
        for each in self._directory.glob("v[0-9]*"):
            if each not in kept:
                shutil.rmtree(each, ignore_errors=True)
