"""The drafters of a verifier: which there are, which request uses which, and moving requests between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

import grpc

from draftwire.v1.drafter_pool_service_pb2 import Drafter
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.model_info_pb2 import PeerInfo
from draftwire.v1.verdict_pb2 import Verdict
from service_runtime.address import peer_address
from service_runtime.errors import ServiceError, failed_precondition, invalid_field, not_found, shutting_down
from service_runtime.logs import get_logger
from service_runtime.message_stream import StreamBroken
from service_runtime.tasks import BackgroundTasks
from speculative_engine.proposal import Proposal
from verifier_service.caller_source import is_reserved
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
        # Drafters that cannot draft for a request, by sequence: they refused it, or it refused their proposal.
        self._avoided: dict[int, set[DrafterLink]] = {}
        self._expiry: dict[str, asyncio.TimerHandle] = {}
        # Drafters that were detached or swapped out and announce themselves on: a heartbeat does not bring them back.
        self._dismissed: set[str] = set()
        self._ending = False
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
            self._avoided.pop(request.sequence_id, None)
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
        """A drafter sent a proposal that contradicts itself: another one drafts for that sequence, or none."""
        link = self._links.get(fault.source)
        if link is not None:
            link.refuse(fault.sequence_id, fault.error)
            self._go_on_without(fault.sequence_id, link)

    # Drafters

    async def attach(self, address: str, name: str) -> DrafterLink:
        """Attach a drafter and wait until it is ready. Raises ServiceError; then it is not attached."""
        known = set(self._links)
        link = self.add(address, name)
        self._dismissed.discard(link.name)
        if link.ready:
            return link
        try:
            async with asyncio.timeout(_ATTACH_SECONDS):
                await asyncio.shield(link.contact)
        except StreamBroken as error:
            raise _refusal(error) or _unreachable(link.address, error) from error
        except TimeoutError as error:
            raise _unreachable(link.address, error) from error
        finally:
            if not link.ready and link.name not in known:
                self._remove(link)
        if not link.ready:
            raise _unreachable(link.address, None)
        return link

    def add(self, address: str, name: str = "") -> DrafterLink:
        """Attach a drafter without waiting; the same name and address again give the same one.

        Raises ServiceError: the address has no form this verifier serves, or the name stands for another address.
        """
        address = _checked_address("address", address)
        name = name or address
        if is_reserved(name):
            raise invalid_field("name", f"{name!r} stands for callers that draft by themselves; take another one")
        link = self._links.get(name)
        if link is not None:
            if link.address != address:
                raise _exists(link)
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
        return self._dismiss(link)

    async def swap(self, old_name: str, new_name: str) -> tuple[DrafterLink, int]:
        """Move every sequence of one drafter to another, make before break, and release the old one.

        new_name: an attached drafter, or an address to attach. Returns the new drafter and how many sequences moved.
        """
        old = self._named(old_name)
        new = self._links.get(new_name) or await self.attach(_checked_address("new_name", new_name), "")
        if new is old:
            raise invalid_field("new_name", f"is {old_name} itself")
        if not new.ready:
            raise _unreachable(new.address, None)
        old.drain()
        moved = await self._empty(old, new)
        self._dismiss(old)
        return new, moved

    def register(self, address: str, name: str, leaving: bool) -> None:
        """A drafter announces itself, sends its heartbeat, or takes its leave. Raises ServiceError."""
        address = _checked_address("address", address)
        name = name or address
        link = self._links.get(name)
        if link is not None and link.address != address:
            raise _exists(link)
        if leaving:
            self._stop_expiry(name)
            self._dismissed.discard(name)
            if link is not None:
                self._tasks.spawn(self._leave(link), name=f"leave of {name}")
            return
        if name not in self._dismissed:
            self.add(address, name).announced = True
        self._start_expiry(name)

    def describe(self) -> list[Drafter]:
        """The state of all drafters, oldest first."""
        return [self._describe(link) for link in self._links.values()]

    def describe_one(self, link: DrafterLink) -> Drafter:
        """The state of one drafter."""
        return self._describe(link)

    async def change_after(self, version: int) -> int:
        """Return the version of the pool's state as soon as it differs from `version`. Raises ServiceError after
        `end_watches`."""
        while self.version == version and not self._ending:
            await self._changed.wait()
        if self._ending:
            raise shutting_down()
        return self.version

    def end_watches(self) -> None:
        """End every wait for a change, present and future: one that lasts for ever would hold up a graceful stop."""
        self._ending = True
        self._changed.set()

    def shut_down(self) -> None:
        """Release all drafters."""
        for name in list(self._expiry):
            self._stop_expiry(name)
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
            self._avoided.get(request.sequence_id, set()).discard(link)
            self._assign(request)

    def link_proposed(self, link: DrafterLink, proposals: list[tuple[int, Proposal]]) -> None:
        """See LinkOwner."""
        self._steps.propose(link.name, proposals)

    def link_dropped(self, link: DrafterLink, sequence_ids: list[int], reopen: bool) -> None:
        """See LinkOwner: the sequences go on with another drafter, or plainly."""
        for sequence_id in sequence_ids:
            self._steps.detach(sequence_id, link.name)
            if reopen and sequence_id in self._requests:
                self._reopened[sequence_id] = self._reopened.get(sequence_id, 0) + 1
                reopen = self._reopened[sequence_id] <= _REOPENINGS
            if not reopen:
                self._go_on_without(sequence_id, link)
            elif sequence_id in self._requests:
                self._assign(self._requests[sequence_id])

    # Assignment

    def _go_on_without(self, sequence_id: int, link: DrafterLink) -> None:
        """Give a sequence another drafter; it gets this one back only with a new connection."""
        request = self._requests.get(sequence_id)
        if request is not None:
            self._avoided.setdefault(sequence_id, set()).add(link)
            self._assign(request)

    def _assign(self, request: RunningRequest) -> None:
        """Open a request with a drafter unless it has one."""
        if request.finished or any(link.has(request.sequence_id) for link in self._links.values()):
            return
        link = self._choose(request)
        if link is not None:
            self._open(request, link)

    def _choose(self, request: RunningRequest) -> DrafterLink | None:
        """The drafter the request names; otherwise the one with the fewest sequences, the better one of equals."""
        avoided = self._avoided.get(request.sequence_id, set())
        ready = [link for link in self._links.values() if link.ready and link not in avoided]
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
        target = new or self._choose(request)
        caught_up = False
        if target is not None and target.ready and old.has(request.sequence_id):
            try:
                async with asyncio.timeout(_MOVE_SECONDS):
                    caught_up = await self._open(request, target)
            except TimeoutError:
                log.warning("drafter did not catch up in time", drafter=target.name, sequence=request.sequence_id)
        if old.has(request.sequence_id):
            old.close([request.sequence_id])
            self._steps.detach(request.sequence_id, old.name)
        if request.sequence_id in self._requests:
            self._assign(request)  # the new drafter may have refused it meanwhile
        return caught_up

    def _dismiss(self, link: DrafterLink) -> Drafter:
        """Release a drafter that was told to go."""
        announcing = link.name in self._expiry
        described = self._remove(link)
        if announcing:
            self._dismissed.add(link.name)
            self._start_expiry(link.name)
        return described

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
            self._stop_expiry(link.name)
            self._steps.forget(link.name)
            self.link_changed(link)
        return described

    async def _leave(self, link: DrafterLink) -> None:
        link.drain()
        await self._empty(link, None)
        self._remove(link)

    def _start_expiry(self, name: str) -> None:
        """Wait for the next heartbeat of a drafter."""
        self._stop_expiry(name)
        loop = asyncio.get_running_loop()
        self._expiry[name] = loop.call_later(_MISSED_HEARTBEATS * HEARTBEAT_SECONDS, self._expire, name)

    def _stop_expiry(self, name: str) -> None:
        timer = self._expiry.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _expire(self, name: str) -> None:
        self._expiry.pop(name, None)
        self._dismissed.discard(name)
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


def _checked_address(field: str, address: str) -> str:
    if address.startswith("local:"):
        raise ServiceError(
            grpc.StatusCode.INVALID_ARGUMENT,
            ErrorReason.ERROR_REASON_UNSUPPORTED_DRAFTER,
            f"this verifier serves no drafter of its own called {address!r}; give HOST:PORT of a drafter service",
        )
    try:
        return peer_address(address)
    except ValueError as error:
        raise invalid_field(field, str(error)) from error


def _exists(link: DrafterLink) -> ServiceError:
    return ServiceError(
        grpc.StatusCode.ALREADY_EXISTS,
        ErrorReason.ERROR_REASON_DRAFTER_EXISTS,
        f"drafter {link.name} is attached already, at {link.address}",
    )


def _refusal(error: StreamBroken) -> ServiceError | None:
    """What a drafter said when it found that the two sides do not fit; None when it said something else."""
    if error.code is not grpc.StatusCode.FAILED_PRECONDITION or error.reason_name is None:
        return None
    reason = dict(ErrorReason.items()).get(f"ERROR_REASON_{error.reason_name}")
    return None if reason is None else failed_precondition(cast(ErrorReason, reason), error.status.message)


def _unreachable(address: str, error: Exception | None) -> ServiceError:
    cause = f": {error}" if error is not None and str(error) else ""
    return ServiceError(
        grpc.StatusCode.UNAVAILABLE,
        ErrorReason.ERROR_REASON_DRAFTER_UNREACHABLE,
        f"drafter at {address} is not ready{cause}",
    )
