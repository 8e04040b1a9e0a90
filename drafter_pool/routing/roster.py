"""The drafters of a verifier by name, and the links to them that are alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import grpc

from drafter_pool.drafter.pooled_drafter import PoolMember
from drafter_pool.drafter.proposal_source import ProposalSink
from drafter_pool.drafter.source import RESERVED
from draftwire.v1.error_reason_pb2 import ErrorReason
from service_runtime.errors import ServiceError, at_capacity, invalid_field, not_found
from service_runtime.process.tasks import BackgroundTasks

_GOODBYE_SECONDS = 2.0
_FORGET_SECONDS = 2.0
"""What a released drafter drafted is of use until its nodes are committed or pruned, a step or two later."""
_FULL_RETRY_SECONDS = 5.0


class Roster:
    """Normally each name has one link. While a drafter's model is replaced it has two: the one that has the name, and
    one that is only alive."""

    def __init__(self, sink: ProposalSink, tasks: BackgroundTasks, max_drafters: int):
        self._sink = sink
        self._tasks = tasks
        self._max_drafters = max_drafters
        self._members: dict[str, PoolMember] = {}
        self._alive: dict[PoolMember, asyncio.Task[None]] = {}

    @property
    def members(self) -> list[PoolMember]:
        """The drafters, oldest first."""
        return list(self._members.values())

    @property
    def links(self) -> list[PoolMember]:
        """All links that are alive."""
        return list(self._alive)

    def __iter__(self) -> Iterator[PoolMember]:
        return iter(self.links)

    def get(self, name: str) -> PoolMember | None:
        """The drafter of a name."""
        return self._members.get(name)

    def named(self, name: str) -> PoolMember:
        """The drafter of a name. Raises ServiceError (NOT_FOUND)."""
        link = self._members.get(name)
        if link is None:
            raise not_found(ErrorReason.ERROR_REASON_DRAFTER_NOT_FOUND, f"no drafter named {name!r} is attached")
        return link

    def find(self, source: str) -> PoolMember | None:
        """The link that drafts under a source."""
        return next((link for link in self._alive if link.source == source), None)

    def enter(self, name: str, address: str, make: Callable[[], PoolMember]) -> tuple[PoolMember, bool]:
        """The drafter of a name, made if there is none; and whether it is new.

        Raises ServiceError: the name stands for another address, or there are as many drafters as there may be.
        """
        link = self._members.get(name)
        if link is not None:
            check_address(link, address)
            return link, False
        if name in RESERVED:
            raise invalid_field("name", f"{name!r} stands for what drafts for one request alone; take another one")
        if len(self._members) >= self._max_drafters:
            raise at_capacity(f"{len(self._members)} drafters are attached already", _FULL_RETRY_SECONDS)
        link = self._members[name] = make()
        self.start(link)
        return link, True

    def start(self, link: PoolMember) -> None:
        """Let a link live."""
        self._alive[link] = self._tasks.spawn(link.run(), name=f"drafter {link.name}")

    def succeed(self, old: PoolMember, new: PoolMember) -> None:
        """Give a living link the name of another, which lives on without it."""
        assert self._members.get(old.name) is old
        self._members[old.name] = new

    def end(self, link: PoolMember) -> bool:
        """Let a link die, and take its name from it; whether it had one."""
        task = self._alive.pop(link, None)
        if task is not None:
            loop = asyncio.get_running_loop()
            if link.release():
                # It says good-bye; a drafter that does not answer is left without one.
                loop.call_later(_GOODBYE_SECONDS, task.cancel)
            else:
                task.cancel()
            loop.call_later(_FORGET_SECONDS, self._sink.forget, link.source)
        if self._members.get(link.name) is not link:
            return False
        del self._members[link.name]
        return True


def check_address(link: PoolMember, address: str) -> None:
    """Raise ServiceError (ALREADY_EXISTS) unless a drafter is at an address."""
    if link.address != address:
        raise ServiceError(
            grpc.StatusCode.ALREADY_EXISTS,
            ErrorReason.ERROR_REASON_DRAFTER_EXISTS,
            f"drafter {link.name} is attached already, at {link.address}",
        )
