"""Gives freed memory back to the system after large messages."""

import asyncio
import ctypes

_COUNTED_BYTES = 1 << 16
"""Of a message that counts: smaller ones are what the memory that is kept is for."""
_LARGE_BYTES = 1 << 22
"""Of messages together, after which memory is given back."""
_SECONDS = 5.0
"""From large messages until memory is given back, for those that follow: it takes some tens of milliseconds."""


def trim_heap() -> None:
    """Gives freed memory back to the system.

    Every thread that works on something large has a heap of its own in glibc, which keeps what is freed in it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc has it, others need it not
        trim(0)


class HeapTrimmer:
    """Counts large messages, and gives back the memory that was freed after them. Used in the event loop only."""

    def __init__(self) -> None:
        self._bytes = 0
        self._large = asyncio.Event()

    def note(self, size: int) -> None:
        """A message, or what was made of one, of so many bytes is of no use any longer."""
        if size >= _COUNTED_BYTES:
            self._bytes += size
            if self._bytes >= _LARGE_BYTES:
                self._large.set()

    async def run(self) -> None:
        """Gives memory back in a thread, at most once in some seconds. Runs until it is cancelled."""
        while True:
            await self._large.wait()
            await asyncio.sleep(_SECONDS)
            self._bytes = 0
            self._large.clear()
            await asyncio.to_thread(trim_heap)
