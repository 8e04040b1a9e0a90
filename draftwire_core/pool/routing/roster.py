"""The roster: a verifier's drafters by name, all drafters whose tasks run, the choice among them, and the version
number that callers watch."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence

import grpc

from draftwire.v1.drafter_pool_service_pb2 import Drafter as DrafterMessage
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.pool.drafter.pooled_drafter import PooledDrafter
from draftwire_core.pool.drafter.proposal_sink import ProposalSink
from draftwire_core.pool.drafter.source import RESERVED
from draftwire_core.pool.routing.description import describe
from draftwire_core.runtime.errors import ServiceError, at_capacity, invalid_field, not_found, shutting_down
from draftwire_core.runtime.process.tasks import BackgroundTasks

_GOODBYE_SECONDS = 2.0
_FORGET_SECONDS = 2.0
"""Time after a release by which the drafter's nodes have been committed or pruned; it takes two steps at most."""
_FULL_RETRY_SECONDS = 5.0


class Roster:
    """The drafters by name, and their tasks. Normally each name has one drafter; during a model replacement there are
    two, one of which holds the name."""

    def __init__(self, sink: ProposalSink, tasks: BackgroundTasks, max_drafters: int):
        self._sink = sink
        self._tasks = tasks
        self._max_drafters = max_drafters
        self._members: dict[str, PooledDrafter] = {}
        self._alive: dict[PooledDrafter, asyncio.Task[None]] = {}

    @property
    def members(self) -> list[PooledDrafter]:
        """The drafters, oldest first."""
        return list(self._members.values())

    @property
    def alive(self) -> list[PooledDrafter]:
        """All drafters whose tasks run, including those that do not hold their name."""
        return list(self._alive)

    def __iter__(self) -> Iterator[PooledDrafter]:
        return iter(list(self._alive))

    def get(self, name: str) -> PooledDrafter | None:
        """Returns the drafter with a name; None if there is none."""
        return self._members.get(name)

    def named(self, name: str) -> PooledDrafter:
        """Returns the drafter with a name. Raises ServiceError (NOT_FOUND)."""
        drafter = self._members.get(name)
        if drafter is None:
            raise not_found(ErrorReason.ERROR_REASON_DRAFTER_NOT_FOUND, f"no drafter named {name!r} is attached")
        return drafter

    def drafting_for(self, sequence_id: int) -> list[str]:
        """Names of the drafters that a sequence is open with, oldest first."""
        return [drafter.name for drafter in self if drafter.has(sequence_id)]

    def find(self, source: str) -> PooledDrafter | None:
        """Returns the living drafter with a source; None if there is none."""
        return next((drafter for drafter in self._alive if drafter.source == source), None)

    def describe(self, drafter: PooledDrafter) -> DrafterMessage:
        """Returns the state of one drafter."""
        sequences = sum(each.sequences for each in {drafter, *self} if each.name == drafter.name)
        return describe(drafter, sequences, self._sink.response_seconds(drafter.source))

    def enter(self, name: str, address: str, make: Callable[[], PooledDrafter]) -> tuple[PooledDrafter, bool]:
        """Returns the drafter with a name, which is created if there is none, and whether it is new.

        Raises ServiceError if the name belongs to another address or is reserved, or if the roster is full.
        """
        drafter = self._members.get(name)
        if drafter is not None:
            check_address(drafter, address)
            return drafter, False
        if name in RESERVED:
            raise invalid_field("name", f"{name!r} is reserved for drafters of a single request; choose another name")
        if len(self._members) >= self._max_drafters:
            raise at_capacity(
                f"{len(self._members)} drafters are attached; at most {self._max_drafters} may be (--max-drafters)",
                _FULL_RETRY_SECONDS,
            )
        drafter = self._members[name] = make()
        self.start(drafter)
        return drafter, True

    def start(self, drafter: PooledDrafter) -> None:
        """Starts a drafter's task."""
        self._alive[drafter] = self._tasks.spawn(drafter.run(), name=f"drafter {drafter.name}")

    def succeed(self, old: PooledDrafter, new: PooledDrafter) -> None:
        """Transfers a drafter's name to another, whose task already runs. The old drafter's task continues."""
        assert self._members.get(old.name) is old
        self._members[old.name] = new

    def end(self, drafter: PooledDrafter) -> bool:
        """Ends a drafter's task and frees its name. Returns whether the drafter held its name."""
        task = self._alive.pop(drafter, None)
        if task is not None:
            loop = asyncio.get_running_loop()
            if drafter.release():
                # The stream ends cleanly if the drafter answers in time.
                loop.call_later(_GOODBYE_SECONDS, task.cancel)
            else:
                task.cancel()
            loop.call_later(_FORGET_SECONDS, self._sink.forget, drafter.source)
        if self._members.get(drafter.name) is not drafter:
            return False
        del self._members[drafter.name]
        return True


def check_address(drafter: PooledDrafter, address: str) -> None:
    """Raises ServiceError (ALREADY_EXISTS) unless a drafter is at an address."""
    if drafter.address != address:
        raise ServiceError(
            grpc.StatusCode.ALREADY_EXISTS,
            ErrorReason.ERROR_REASON_DRAFTER_EXISTS,
            f"drafter {drafter.name} is attached already, at {drafter.address}",
        )


_EXPLORE = 0.05
"""Share of the choices that go to a drafter other than the best."""


class DrafterChoice:
    """Chooses among drafters by accepted tokens per second of drafting time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def among(self, drafters: Sequence[PooledDrafter]) -> PooledDrafter | None:
        """Chooses the drafter for one more sequence; None if there are no candidates.

        Unmeasured drafters come first, evenly, as long as their addresses allow it. Otherwise the drafter with the
        highest accepted_per_second / (sequences + 1), the share of one more sequence, is chosen, a paused one only if
        all are paused; with a probability of 0.05 it is a random other one.
        """
        fresh = [drafter for drafter in drafters if drafter.goes_first]
        if fresh:
            return min(fresh, key=lambda drafter: drafter.sequences)
        # A sequence of a paused drafter is decoded plainly, however little of its own time its tokens took.
        best = min(
            drafters,
            key=lambda drafter: (drafter.pause_policy.paused, -_worth(drafter), drafter.sequences),
            default=None,
        )
        others = [drafter for drafter in drafters if drafter is not best]
        if others and self._rng.random() < _EXPLORE:
            return self._rng.choice(others)
        return best


def _worth(drafter: PooledDrafter) -> float:
    return drafter.speed.accepted_per_second / (drafter.sequences + 1)


class PoolWatch:
    """Counts changes to the list of drafters. Used in the event loop only."""

    def __init__(self) -> None:
        self.version = 0
        """Number of changes so far."""
        self._changed = asyncio.Event()
        self._ending = False

    def notify(self) -> None:
        """Counts a change, and wakes all waiting callers."""
        self.version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def change_after(self, version: int) -> int:
        """Returns the version as soon as it differs from `version`. Raises ServiceError after `end`."""
        while self.version == version and not self._ending:
            await self._changed.wait()
        if self._ending:
            raise shutting_down()
        return self.version

    def end(self) -> None:
        """Ends every wait, present and future, so that none delays a graceful stop."""
        self._ending = True
        self._changed.set()
