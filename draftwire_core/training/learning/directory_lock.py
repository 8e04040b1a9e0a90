"""The lock of a directory that only one process may use."""

from __future__ import annotations

import fcntl
from pathlib import Path
from types import TracebackType
from typing import Self


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
