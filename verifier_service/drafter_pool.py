"""The drafters of a verifier: which there are, which request uses which, and moving requests between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import grpc

from draftwire.v1.drafter_pool_service_pb2 import Drafter
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.model_info_pb2 import PeerInfo
from draftwire.v1.verdict_pb2 import Verdict
from service_runtime.address import Address
from service_runtime.errors import ServiceError, invalid_field, not_found
from service_runtime.logs import get_logger
from service_runtime.message_stream import StreamBroken
from service_runtime.tasks import BackgroundTasks
from speculative_engine.proposal import Proposal
from verifier_service.drafter_link import Connect, DrafterLink
from verifier_service.running_request import RunningRequest
from verifier_service.step_loop import ProposalFault, StepLoop

log = get_logger(__name__)

HEARTBEAT_SECONDS = 2.0
_MISSED_HEARTBEATS = 3
_MOVE_SECONDS = 30.0
"""Longest wait for a drafter to catch up with a sequence that moves to it."""
_ATTACH_SECONDS = 10.0
_GOODBYE_SECONDS = 2.0
_REOPENINGS = 3
"""How often a sequence is opened again with a drafter that fell out of step."""


class DrafterPool:
    """Used in the event loop only. A request is drafted for by at most one drafter, by two while it moves."""

    def __init__(
        self,
        steps: StepLoop,
        identity: PeerInfo,
        connect: Callable[[str], Connect],
        tasks: BackgroundTasks,
        max_tree_nodes: int,
    ):
        self._steps = steps
        self._identity = identity
        self._connect = connect
        self._tasks = tasks
        self._max_tree_nodes = max_tree_nodes
        self._links: dict[str, DrafterLink] = {}
        self._attached_at: dict[str, float] = {}
        self._running: dict[DrafterLink, asyncio.Task[None]] = {}
        self._requests: dict[int, RunningRequest] = {}
        self._reopened: dict[int, int] = {}
        self._expiry: dict[str, asyncio.TimerHandle] = {}
        self._changed = asyncio.Event()
        self.version = 0
        """Number of state changes so far."""

    # Requests

    def check(self, drafter: str | None) -> None:
        """Raise ServiceError if a request names a drafter that is not attached."""
        if drafter is not None:
            self._named(drafter)

    def admit(self, request: RunningRequest) -> None:
        """Draft for a request from now on, if it wants and a drafter is ready."""
        if request.order.speculate:
            self._requests[request.sequence_id] = request
            self._assign(request)

    def release(self, request: RunningRequest) -> None:
        """Stop drafting for a request."""
        if self._requests.pop(request.sequence_id, None) is not None:
            self._reopened.pop(request.sequence_id, None)
            for link in self._links.values():
                link.close([request.sequence_id])

    def send_verdicts(self, verdicts: list[Verdict]) -> None:
        """Tell the drafters what a step committed."""
        for link in self._links.values():
            link.send_verdicts(verdicts)

    def count(self, drafted: dict[str, int], sources: list[str | None]) -> None:
        """Count verified and accepted draft tokens."""
        for name, count in drafted.items():
            if name in self._links:
                self._links[name].stats.draft_tokens += count
        for source in sources:
            if source in self._links:
                self._links[source].stats.accepted_tokens += 1

    def count_stale(self, name: str, nodes: int) -> None:
        """Count nodes that came too late."""
        if name in self._links:
            self._links[name].stats.stale_nodes += nodes

    def refuse(self, fault: ProposalFault) -> None:
        """A drafter sent a proposal that contradicts itself: it drafts no more for that sequence."""
        link = self._links.get(fault.source)
        if link is not None:
            link.refuse(fault.sequence_id, fault.error)

    # Drafters

    async def attach(self, address: str, name: str) -> DrafterLink:
        """Attach a drafter and wait until it is ready. Raises ServiceError; then it is not attached."""
        known = set(self._links)
        link = self.add(address, name)
        try:
            async with asyncio.timeout(_ATTACH_SECONDS):
                await asyncio.shield(link.contact)
        except (StreamBroken, TimeoutError) as error:
            raise _unreachable(link.address, error) from error
        finally:
            if not link.ready and link.name not in known:
                self._remove(link)
        return link

    def add(self, address: str, name: str = "") -> DrafterLink:
        """Attach a drafter without waiting; the same name and address again give the same one.

        Raises ServiceError: the address has no form this verifier serves, or the name stands for another address.
        """
        address = _checked_address(address)
        name = name or address
        link = self._links.get(name)
        if link is not None:
            if link.address != address:
                raise ServiceError(
                    grpc.StatusCode.ALREADY_EXISTS,
                    ErrorReason.ERROR_REASON_DRAFTER_EXISTS,
                    f"drafter {name} is attached already, at {link.address}",
                )
            return link
        link = DrafterLink(name, address, self._connect(address), self._identity, self)
        self._links[name] = link
        self._attached_at[name] = time.time()
        self._running[link] = self._tasks.spawn(link.run(), name=f"drafter {name}")
        self.link_changed(link)
        return link

    async def detach(self, name: str) -> Drafter:
        """Move a drafter's sequences to another one, or leave them to plain decoding, and release it."""
        link = self._named(name)
        link.drain()
        await self._empty(link, None)
        return self._remove(link)

    async def swap(self, old_name: str, new_name: str) -> tuple[DrafterLink, int]:
        """Move every sequence of one drafter to another, make before break, and release the old one.

        new_name: an attached drafter, or an address to attach. Returns the new drafter and how many sequences moved.
        """
        old = self._named(old_name)
        new = self._links.get(new_name) or await self.attach(new_name, "")
        if new is old:
            raise invalid_field("new_name", f"is {old_name} itself")
        if not new.ready:
            raise _unreachable(new.address, None)
        old.drain()
        moved = await self._empty(old, new)
        self._remove(old)
        return new, moved

    def register(self, address: str, name: str, leaving: bool) -> None:
        """A drafter announces itself, sends its heartbeat, or takes its leave. Raises ServiceError."""
        key = name or _checked_address(address)
        timer = self._expiry.pop(key, None)
        if timer is not None:
            timer.cancel()
        if leaving:
            link = self._links.get(key)
            if link is not None:
                self._tasks.spawn(self._leave(link), name=f"leave of {key}")
            return
        link = self.add(address, name)
        link.announced = True
        loop = asyncio.get_running_loop()
        self._expiry[key] = loop.call_later(_MISSED_HEARTBEATS * HEARTBEAT_SECONDS, self._expire, key)

    def describe(self) -> list[Drafter]:
        """The state of all drafters, oldest first."""
        return [self._describe(link) for link in self._links.values()]

    def describe_one(self, link: DrafterLink) -> Drafter:
        """The state of one drafter."""
        return self._describe(link)

    async def change_after(self, version: int) -> int:
        """Return the version of the pool's state as soon as it differs from `version`."""
        while self.version == version:
            await self._changed.wait()
        return self.version

    def shut_down(self) -> None:
        """Release all drafters."""
        for timer in self._expiry.values():
            timer.cancel()
        for link in list(self._links.values()):
            self._remove(link)

    # LinkOwner

    def link_changed(self, link: DrafterLink) -> None:
        """See LinkOwner."""
        self.version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def link_ready(self, link: DrafterLink) -> None:
        """See LinkOwner: requests that have no drafter get this one."""
        for request in self._requests.values():
            self._assign(request)

    def link_proposed(self, link: DrafterLink, proposals: list[tuple[int, Proposal]]) -> None:
        """See LinkOwner."""
        self._steps.propose(link.name, proposals)

    def link_dropped(self, link: DrafterLink, sequence_ids: list[int], reopen: bool) -> None:
        """See LinkOwner: the sequences go on with another drafter, or plainly."""
        for sequence_id in sequence_ids:
            self._steps.detach(sequence_id, link.name)
            request = self._requests.get(sequence_id)
            if request is None:
                continue
            if reopen:
                self._reopened[sequence_id] = self._reopened.get(sequence_id, 0) + 1
            if not reopen or self._reopened[sequence_id] <= _REOPENINGS:
                self._assign(request, avoid=None if reopen else link)

    # Assignment

    def _assign(self, request: RunningRequest, avoid: DrafterLink | None = None) -> None:
        """Open a request with a drafter unless it has one."""
        if request.finished or any(link.has(request.sequence_id) for link in self._links.values()):
            return
        link = self._choose(request, avoid)
        if link is not None:
            self._open(request, link)

    def _choose(self, request: RunningRequest, avoid: DrafterLink | None) -> DrafterLink | None:
        """The drafter the request names; otherwise the one with the fewest sequences, the better one of equals."""
        ready = [link for link in self._links.values() if link.ready and link is not avoid]
        if request.order.drafter is not None:
            return next((link for link in ready if link.name == request.order.drafter), None)
        return min(ready, key=lambda link: (link.sequences, -_acceptance(link)), default=None)

    def _open(self, request: RunningRequest, link: DrafterLink) -> asyncio.Future[bool]:
        self._steps.attach(request.sequence_id, link.name)
        return link.open(request, self._max_tree_nodes)

    async def _empty(self, old: DrafterLink, new: DrafterLink | None) -> int:
        """Move all sequences off `old`, each once its new drafter has caught up; the number that moved."""
        moving = [request for request in self._requests.values() if old.has(request.sequence_id)]
        moved = await asyncio.gather(*(self._move(request, old, new) for request in moving))
        return sum(moved)

    async def _move(self, request: RunningRequest, old: DrafterLink, new: DrafterLink | None) -> bool:
        target = new or self._choose(request, old)
        caught_up = False
        if target is not None and target.ready:
            try:
                async with asyncio.timeout(_MOVE_SECONDS):
                    caught_up = await self._open(request, target)
            except TimeoutError:
                log.warning("drafter did not catch up in time", drafter=target.name, sequence=request.sequence_id)
        old.close([request.sequence_id])
        self._steps.detach(request.sequence_id, old.name)
        return caught_up

    def _remove(self, link: DrafterLink) -> Drafter:
        described = self._describe(link)
        task = self._running.pop(link, None)
        if task is not None and link.release():
            # It says good-bye; a drafter that does not answer is left without one.
            asyncio.get_running_loop().call_later(_GOODBYE_SECONDS, task.cancel)
        elif task is not None:
            task.cancel()
        if self._links.get(link.name) is link:
            del self._links[link.name]
            del self._attached_at[link.name]
            self._steps.forget(link.name)
            self.link_changed(link)
        return described

    async def _leave(self, link: DrafterLink) -> None:
        link.drain()
        await self._empty(link, None)
        self._remove(link)

    def _expire(self, name: str) -> None:
        self._expiry.pop(name, None)
        link = self._links.get(name)
        if link is not None:
            log.warning("heartbeat stayed out", drafter=name)
            self._tasks.spawn(self._leave(link), name=f"expiry of {name}")

    def _named(self, name: str) -> DrafterLink:
        link = self._links.get(name)
        if link is None:
            raise not_found(ErrorReason.ERROR_REASON_DRAFTER_NOT_FOUND, f"no drafter named {name!r} is attached")
        return link

    def _describe(self, link: DrafterLink) -> Drafter:
        drafter = Drafter(
            name=link.name,
            address=link.address,
            state=link.state,
            sequences=link.sequences,
            draft_tokens=link.stats.draft_tokens,
            accepted_tokens=link.stats.accepted_tokens,
            stale_nodes=link.stats.stale_nodes,
            last_error=link.last_error,
            announced=link.announced,
        )
        drafter.step_time.FromNanoseconds(round(link.stats.step_seconds * 1e9))
        timing = self._steps.engine.planner.timings.get(link.name)
        if timing is not None:
            drafter.response_time.FromNanoseconds(round(timing.response * 1e9))
        drafter.attached_at.FromNanoseconds(round(self._attached_at.get(link.name, 0.0) * 1e9))
        if link.peer is not None:
            drafter.model.CopyFrom(link.peer.model)
        return drafter


def _acceptance(link: DrafterLink) -> float:
    return link.stats.accepted_tokens / max(1, link.stats.draft_tokens)


def _checked_address(address: str) -> str:
    if address.startswith("local:"):
        raise ServiceError(
            grpc.StatusCode.INVALID_ARGUMENT,
            ErrorReason.ERROR_REASON_UNSUPPORTED_DRAFTER,
            f"this verifier serves no drafter of its own called {address!r}; give HOST:PORT of a drafter service",
        )
    try:
        return str(Address.parse(address))
    except ValueError as error:
        raise invalid_field("address", str(error)) from error


def _unreachable(address: str, error: Exception | None) -> ServiceError:
    cause = f": {error}" if error is not None and str(error) else ""
    return ServiceError(
        grpc.StatusCode.UNAVAILABLE,
        ErrorReason.ERROR_REASON_DRAFTER_UNREACHABLE,
        f"drafter at {address} is not ready{cause}",
    )
