"""Memory that the process returns to the system: the heap after large messages, and code pages after the start."""

from __future__ import annotations

import asyncio
import ctypes
import re
import resource
import sys
import traceback
from pathlib import Path

_COUNTED_BYTES = 1 << 16
"""Smallest message that counts; memory freed by smaller ones is worth keeping."""
_LARGE_BYTES = 1 << 22
"""Total size of counted messages after which memory is returned."""
_SECONDS = 5.0
"""Delay before memory is returned, so that one trim, which takes some tens of milliseconds, covers several messages."""


def trim_heap() -> None:
    """Returns freed memory to the system.

    glibc gives each thread with large allocations a heap of its own, which keeps freed memory.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # only glibc has it, and only glibc needs it
        trim(0)


def free_locals(error: BaseException) -> None:
    """Frees what the functions that an error has left still hold. The error is one of a cycle of references with them,
    so that their tensors would otherwise stay until the garbage collector comes."""
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        each = errors.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            errors += (each.__cause__, each.__context__)


def peak_megabytes() -> int:
    """Returns the most memory that this process has had at once, mapped files that it has read included."""
    if sys.platform.startswith("linux"):
        # Not getrusage: its peak includes that of the process that started this one.
        status = Path("/proc/self/status").read_text()
        return round(int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) * 1024 / 1e6)
    unit = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, kilobytes elsewhere
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6)


class HeapTrimmer:
    """Counts large messages and returns the memory that they free. Used in the event loop only."""

    def __init__(self) -> None:
        self._bytes = 0
        self._large = asyncio.Event()

    def note(self, size: int) -> None:
        """Counts a message, or an object made from one, of `size` bytes that is no longer needed."""
        if size >= _COUNTED_BYTES:
            self._bytes += size
            if self._bytes >= _LARGE_BYTES:
                self._large.set()

    async def run(self) -> None:
        """Returns memory in a thread, at most once every few seconds. Runs until cancelled."""
        while True:
            await self._large.wait()
            # What is counted from here on may not be freed yet when this trim runs: it has another one.
            self._bytes = 0
            self._large.clear()
            await asyncio.sleep(_SECONDS)
            await asyncio.to_thread(trim_heap)


_MAPPING = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) r-xp \S+ \S+ (?!0 )\d+ +/.*\n(?:\w+:.*\n)*?Anonymous: +0 kB$", re.MULTILINE
)
_MADV_DONTNEED = 4


def release_code_pages() -> None:
    """Releases the pages of mapped code; those that run again come back from the system's page cache.

    Importing torch registers thousands of operators, by code that runs once. Its pages are clean and need no memory of
    their own, but count as memory of this process, some 60 MB, as long as it has them mapped. Mappings with changed
    pages, which the file could not give back, are left alone.
    """
    if not sys.platform.startswith("linux"):
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for found in _MAPPING.finditer(Path("/proc/self/smaps").read_text()):
        start, end = (int(each, 16) for each in found.groups())
        advise(start, end - start, _MADV_DONTNEED)  # advice: where it is refused, pages stay
