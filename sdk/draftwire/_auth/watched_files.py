"""Files that are read again when they change, as certificates and tokens do while a process runs."""

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
    """What some files hold. Safe to use from several threads.

    Nothing runs in between: ``get`` looks at the files' times and reads them when those are new. While they are half
    written, gone or wrong, it goes on with what it read last, and says so in the log once for each change.
    """

    def __init__(self, paths: Sequence[str | Path], read: Callable[[], ValueT]) -> None:
        """Reads the files for the first time.

        Args:
            paths: the files to look at.
            read: reads them; raises ValueError or OSError where they are wrong.

        Raises:
            ValueError: they are wrong, as ``read`` says it.
            OSError: they cannot be read.
        """
        self._paths = tuple(Path(path) for path in paths)
        self._read = read
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._value = read()

    def get(self) -> ValueT:
        """Returns what the files hold: the same object until they have changed and are right."""
        with self._lock:
            stamp = self._look()
            if stamp != self._stamp:
                self._stamp = stamp  # taken before reading: a change meanwhile is seen with the next call
                self._read_again()
            return self._value

    def _read_again(self) -> None:
        names = ", ".join(map(str, self._paths))
        try:
            self._value = self._read()
        except (OSError, ValueError) as error:
            log.warning("%s cannot be used as it is now, what it held before stays in use: %s", names, error)
        else:
            log.info("%s was read anew", names)

    def _look(self) -> _Stamp:
        return tuple(_stamp_of(path) for path in self._paths)


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written or replaced, also behind a link; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
