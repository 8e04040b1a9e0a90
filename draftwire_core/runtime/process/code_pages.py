"""Pages of libraries' code that a process has run while it started, which count as its memory."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

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
