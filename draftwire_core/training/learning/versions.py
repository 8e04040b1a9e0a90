"""The checkpoints that were learned, by number."""

from __future__ import annotations

import shutil
from pathlib import Path

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
