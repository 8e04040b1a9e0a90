"""The time that queued work takes on a device, found out without waiting for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class DeviceTimer:
    """Adds up the seconds of pieces of work: on GPUs those that the device takes, known when it has done them."""

    def __init__(self) -> None:
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        """Beginning and end of the pieces that a GPU may not have done yet, in order."""
        self._seconds = 0.0

    @contextmanager
    def timed(self, device: torch.device) -> Iterator[None]:
        """Counts what is queued within the context."""
        if device.type != "cuda":
            started = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - started
            return
        stream = torch.cuda.current_stream(device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        yield
        end.record(stream)
        self._pending.append((begin, end))

    def take(self) -> float:
        """Returns the seconds that have become known since the last call."""
        while self._pending and self._pending[0][1].query():
            begin, end = self._pending.popleft()
            self._seconds += begin.elapsed_time(end) / 1000
        seconds, self._seconds = self._seconds, 0.0
        return seconds
