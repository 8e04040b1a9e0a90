"""The threads that tokenize, render and decode texts off the event loop, and the queues before them."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from draftwire_core.runtime.errors import at_capacity
from draftwire_core.runtime.process.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")

_RETRY_SECONDS = 1.0
_WAIT_SECONDS = 60.0
"""Longest time a text waits before its request is refused."""
_LEAST_SIZE = 64
"""Bytes that every text counts as at least, because a queued job takes memory as well."""


class LaneLimits(NamedTuple):
    """Limits of one lane."""

    largest: float
    """Largest text of the lane, in bytes."""
    most: int
    """Most bytes of all texts running or waiting in the lane. A single text may exceed it."""


LANES = (LaneLimits(1 << 15, 1 << 23), LaneLimits(1 << 20, 1 << 25), LaneLimits(float("inf"), 1 << 26))
"""Lanes by size of text. Reading 32 KiB takes some tens of milliseconds, 1 MiB about a second."""


@dataclass(slots=True, eq=False)
class _Job:
    peer: str
    size: int
    work: Callable[[], Any]
    result: asyncio.Future[Any]
    waits: asyncio.TimerHandle | None = None
    """Timer that ends the wait."""


class _Lane:
    """One thread and its queues, one per peer; the peer whose turn is next comes first."""

    def __init__(self, limits: LaneLimits, name: str) -> None:
        self.limits = limits
        self.thread = ThreadPoolExecutor(1, name)
        self.running: asyncio.Future[Any] | None = None
        self.held: Counter[str] = Counter()
        """Bytes of the texts running or waiting, by peer."""
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()
        self._last: str | None = None
        """The peer that had the last turn."""

    def has_room(self, peer: str, size: int) -> bool:
        """Returns whether a peer may add a text: a peer may hold at most as much as it leaves free for others."""
        held = self.held.total()
        return not held or held + self.held[peer] + size <= self.limits.most

    def add(self, job: _Job) -> None:
        self.held[job.peer] += job.size
        self._waiting.setdefault(job.peer, deque()).append(job)

    def remove(self, job: _Job) -> None:
        """Removes a job if it still waits."""
        jobs = self._waiting.get(job.peer, deque())
        if job in jobs:
            jobs.remove(job)
            if not jobs:
                del self._waiting[job.peer]
            self.release(job)

    def take(self) -> _Job | None:
        """Returns the next job: peers take turns, each with its oldest job."""
        if not self._waiting:
            return None
        if next(iter(self._waiting)) == self._last:  # it may have queued again before others came
            self._waiting.move_to_end(self._last)
        self._last, jobs = self._waiting.popitem(last=False)
        job = jobs.popleft()
        if jobs:
            self._waiting[job.peer] = jobs
        return job

    def release(self, job: _Job) -> None:
        """Frees the room of a finished job."""
        self.held[job.peer] -= job.size
        if not self.held[job.peer]:
            del self.held[job.peer]


class TextPool:
    """Reads texts in threads of its own. Used in the event loop only.

    Small texts do not wait for large ones: each size class has a lane with its own thread and capacity. Within a lane
    peers take turns, so a peer that sends many texts delays only itself. A waiting text is dropped when its caller is
    gone. Running work cannot be stopped, so callers must bound texts first.
    """

    def __init__(
        self,
        on_read: Callable[[int], None] | None = None,
        lanes: tuple[LaneLimits, ...] = LANES,
        wait_seconds: float = _WAIT_SECONDS,
    ) -> None:
        """on_read: called with the size in bytes of each text that has been read. lanes: smallest texts first.
        wait_seconds: longest time before the reading of a text begins."""
        self._on_read = on_read
        self._wait_seconds = wait_seconds
        self._lanes = [_Lane(limits, f"text-{number}") for number, limits in enumerate(lanes)]

    @property
    def held(self) -> int:
        """Bytes of the texts running or waiting."""
        return sum(lane.held.total() for lane in self._lanes)

    async def run(self, work: Callable[[], T], size: int, peer: str = "") -> T:
        """Runs `work` in a thread for a peer's text of `size` bytes and returns its result. May be cancelled.

        Raises what `work` raises, and ServiceError (AT_CAPACITY) if too much is waiting or the wait is too long.
        """
        size = max(size, _LEAST_SIZE)
        lane = next(lane for lane in self._lanes if size <= lane.limits.largest)
        if not lane.has_room(peer, size):
            raise at_capacity(
                f"texts of {lane.held.total()} bytes are being read or waiting, {lane.held[peer]} of them from {peer}; "
                f"{size} more are too many",
                _RETRY_SECONDS,
            )
        loop = asyncio.get_running_loop()
        job = _Job(peer, size, work, loop.create_future())
        job.waits = loop.call_later(self._wait_seconds, self._give_up, lane, job)
        lane.add(job)
        self._go_on(lane)
        try:
            result: T = await job.result
        except asyncio.CancelledError:
            job.waits.cancel()
            lane.remove(job)
            raise
        return result

    def close(self) -> None:
        """Ends the threads once they are idle, without waiting for their current work."""
        for lane in self._lanes:
            lane.thread.shutdown(wait=False)
            if lane.running is not None:
                lane.running.cancel()

    def _go_on(self, lane: _Lane) -> None:
        job = None if lane.running is not None else lane.take()
        if job is not None:
            if job.waits is not None:
                job.waits.cancel()
            lane.running = asyncio.get_running_loop().run_in_executor(lane.thread, job.work)
            lane.running.add_done_callback(partial(self._done, lane, job))

    def _give_up(self, lane: _Lane, job: _Job) -> None:
        lane.remove(job)
        if not job.result.done():
            message = f"texts ahead of this one were not read within {self._wait_seconds:g} seconds"
            job.result.set_exception(at_capacity(message, _RETRY_SECONDS))

    def _done(self, lane: _Lane, job: _Job, ended: asyncio.Future[Any]) -> None:
        lane.running = None
        lane.release(job)
        if ended.cancelled():  # the pool is closed
            job.result.cancel()
            return
        if self._on_read is not None:
            self._on_read(job.size)
        error = ended.exception()
        if job.result.cancelled():
            log.debug("caller left before its text was read", bytes=job.size, error=repr(error) if error else None)
        elif error is not None:
            job.result.set_exception(error)
        else:
            job.result.set_result(ended.result())
        self._go_on(lane)
