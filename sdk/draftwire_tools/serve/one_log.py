"""One log of several processes: every line begins with the name of the process that wrote it."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Self

from draftwire_tools.service import Job

_SECONDS = 0.2
"""Interval at which the processes' own logs are read."""
_KEPT = 1 << 20
"""Bytes at the end of a process's own log that stay, for what looks there; before them it takes no space."""
_PUNCH_HOLE = 0x03
"""FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE of Linux."""


class OneLog:
    """Follows the logs of processes and writes their lines to one file, in a thread of its own."""

    def __init__(self, place: Path) -> None:
        """Writes to `place`, whose earlier lines stay.

        Raises:
            OSError: the file cannot be written.
        """
        self.place = place
        self._out = place.open("ab")
        self._sources: list[tuple[bytes, BinaryIO, bytearray]] = []
        self._lock = threading.Lock()
        self._failed = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="one-log", daemon=True)

    def follow(self, child: Job) -> None:
        """Writes a child's lines from now on, the first one included."""
        with self._lock:
            self._sources.append((child.name.encode(), child.log.open("r+b"), bytearray()))

    def __enter__(self) -> Self:
        """Begins to write."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Writes what is left, and closes the file."""
        self._ending.set()
        self._thread.join()
        self._copy_or_say(last=True)
        for _, source, _ in self._sources:
            source.close()
        with contextlib.suppress(OSError):  # has been said
            self._out.close()

    def _run(self) -> None:
        while not self._ending.wait(_SECONDS):
            self._copy_or_say()

    def _copy_or_say(self, *, last: bool = False) -> None:
        """Copies. A log that cannot be written, as on a full disk, is told once; later lines are tried again."""
        try:
            self._copy(last=last)
        except OSError as error:
            if not self._failed:
                print(f"draftwire: --log: {self.place} cannot be written: {error.strerror}", file=sys.stderr)
            self._failed = True

    def _copy(self, *, last: bool = False) -> None:
        with self._lock:
            sources: Sequence[tuple[bytes, BinaryIO, bytearray]] = list(self._sources)
        for name, source, begun in sources:
            before = source.tell()
            begun += source.read()
            if source.tell() // _KEPT > before // _KEPT:
                _free(source, source.tell() - _KEPT)
            *lines, rest = bytes(begun).split(b"\n")
            if last and rest:
                lines, rest = [*lines, rest], b""
            begun[:] = rest
            for line in lines:
                self._out.write(name + b" | " + line + b"\n")
        self._out.flush()


def _free(file: BinaryIO, end: int) -> None:
    """Gives back the space of a file before an offset, where the system can. The file keeps its size, so that whatever
    else reads or writes it stays at its place."""
    if sys.platform == "linux":
        ctypes.CDLL(None).fallocate(file.fileno(), _PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(end))
