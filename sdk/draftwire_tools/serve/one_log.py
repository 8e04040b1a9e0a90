"""One log of several processes: every line begins with the name of the process that wrote it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Self

from draftwire_tools.service import Job

_SECONDS = 0.2
"""Interval at which the processes' own logs are read."""


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
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="one-log", daemon=True)

    def follow(self, child: Job) -> None:
        """Writes a child's lines from now on, the first one included."""
        with self._lock:
            self._sources.append((child.name.encode(), child.log.open("rb"), bytearray()))

    def __enter__(self) -> Self:
        """Begins to write."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Writes what is left, and closes the file."""
        self._ending.set()
        self._thread.join()
        self._copy(last=True)
        for _, source, _ in self._sources:
            source.close()
        self._out.close()

    def _run(self) -> None:
        while not self._ending.wait(_SECONDS):
            self._copy()

    def _copy(self, *, last: bool = False) -> None:
        with self._lock:
            sources: Sequence[tuple[bytes, BinaryIO, bytearray]] = list(self._sources)
        for name, source, begun in sources:
            begun += source.read()
            *lines, rest = bytes(begun).split(b"\n")
            if last and rest:
                lines, rest = [*lines, rest], b""
            begun[:] = rest
            for line in lines:
                self._out.write(name + b" | " + line + b"\n")
        self._out.flush()
