"""Files that are read again when they change, such as certificates and tokens."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")

log = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int, int] | None, ...]


class WatchedFiles(Generic[ValueT]):
    """A value read from files. Safe to use from several threads.

    Nothing runs in the background: ``get`` checks the files' modification times and reads them again if they changed.
    While the files are incomplete, missing or invalid, it keeps the last valid value and logs a warning once per
    change.
    """

    def __init__(self, paths: Sequence[str | Path], read: Callable[[], ValueT]) -> None:
        """Reads the files for the first time.

        Args:
            paths: the files to watch.
            read: reads the files; raises ValueError or OSError if they are invalid.

        Raises:
            ValueError: the files are invalid; raised by ``read``.
            OSError: the files cannot be read.
        """
        self._paths = tuple(Path(path) for path in paths)
        self._read = read
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._value = read()

    def get(self) -> ValueT:
        """Returns the value. The object changes only when the files have changed and are valid."""
        with self._lock:
            stamp = self._look()
            if stamp != self._stamp:
                self._stamp = stamp  # taken before reading, so that the next call sees a change in between
                self._read_again()
            return self._value

    def _read_again(self) -> None:
        names = ", ".join(map(str, self._paths))
        try:
            self._value = self._read()
        except (OSError, ValueError) as error:
            log.warning("%s not reloaded; its last valid content stays in use: %s", names, error)
        else:
            log.info("%s reloaded", names)

    def _look(self) -> _Stamp:
        return tuple(_stamp_of(path) for path in self._paths)


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Returns a stamp that changes when a file is written or replaced, also behind a link; None for a missing file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
