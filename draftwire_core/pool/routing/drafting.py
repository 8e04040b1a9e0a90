"""The assignment of drafters to requests."""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from draftwire_core.pool.drafter.draft_messages import Dropped
from draftwire_core.pool.drafter.pooled_drafter import PooledDrafter
from draftwire_core.pool.drafter.proposal_sink import ProposalSink
from draftwire_core.pool.drafter.speculated_request import SpeculatedRequest
from draftwire_core.pool.routing.drafted_request import DraftedRequest
from draftwire_core.pool.routing.roster import DrafterChoice, Roster


class Fallback(enum.Enum):
    """The reason that a request lost its last drafter and fell back to plain decoding until it got another one."""

    LOST = "lost"
    """The connection was lost."""
    OUT_OF_STEP = "out_of_step"
    """The drafter's committed tokens were out of sync."""
    FULL = "full"
    """The drafter had no room."""
    REFUSED = "refused"
    """The drafter refused the request, or the verifier refused the drafter's proposal."""
    RELEASED = "released"
    """The drafter was detached or left."""


@dataclass(slots=True)
class PoolCounts:
    """Counts since the start, including those of drafters that have left. Used in the event loop only."""

    fallbacks: Counter[Fallback] = field(default_factory=Counter)
    swaps: int = 0
    failed_swaps: int = 0
    """Swaps that did not complete, so that the old drafter stayed."""
    moved_sequences: int = 0
    """Sequences that changed their drafter in a swap."""


_REOPENINGS = 3
"""Maximum number of times that a sequence is reopened with a drafter that fell out of sync."""

Preference = Callable[[PooledDrafter, Sequence[PooledDrafter]], PooledDrafter]
"""Returns the drafter that gets a sequence: the chosen one, or another of the eligible ones."""


@dataclass(slots=True)
class _Redirection:
    """The new drafter of a swap in progress, which requests for the old one get."""

    new: str
    renamed: list[tuple[DraftedRequest, str]] = field(default_factory=list)
    """Requests that get the new drafter instead, each with the name in the request."""


class Drafting:
    """Opens requests with drafters, and closes them there. Used in the event loop only."""

    def __init__(
        self, sink: ProposalSink, roster: Roster, choice: DrafterChoice, max_tree_nodes: int, drafters_per_request: int
    ):
        self._sink = sink
        self._roster = roster
        self._choice = choice
        self._max_tree_nodes = max_tree_nodes
        self._drafters_per_request = drafters_per_request
        self._requests: dict[int, DraftedRequest] = {}
        # By the old drafter's name, while a swap is in progress.
        self._redirected: dict[str, _Redirection] = {}
        self._retries: dict[PooledDrafter, asyncio.TimerHandle] = {}
        self.counts = PoolCounts()
        self.prefer: Preference = lambda chosen, _: chosen
        """A hook set by the rollouts to enforce their shares."""
        self.rival: Callable[[PooledDrafter], PooledDrafter | None] = lambda _: None
        """A hook set by the rollouts: returns the drafter that a drafter is compared with. A request gets one of the
        two, unless it names both."""

    def admit(self, request: SpeculatedRequest) -> None:
        """Starts drafting for a request, if it allows drafting and drafters are ready."""
        order = request.order
        if order.speculate:
            names = {name: name for name in order.drafter_names}
            drafted = DraftedRequest(request, names, order.drafters or self._drafters_per_request)
            for old in self._redirected:
                self._rename(drafted, old)
            self._requests[request.sequence_id] = drafted
            self.assign(drafted)

    def release(self, request: SpeculatedRequest) -> None:
        """Stops drafting for a request."""
        drafted = self._requests.pop(request.sequence_id, None)
        if drafted is None:
            return
        drafted.over = True
        for drafter in self._roster:
            self.close(drafted, drafter)

    def drafted_by(self, drafter: PooledDrafter) -> list[DraftedRequest]:
        """Returns the requests that are open with a drafter."""
        return [drafted for drafted in self._requests.values() if drafter.has(drafted.sequence_id)]

    def assign(self, drafted: DraftedRequest) -> None:
        """Opens a request with drafters until it has its wanted number."""
        sequence_id = drafted.sequence_id
        having = sum(drafter.has(sequence_id) for drafter in self._roster)
        while having < drafted.wanted and not drafted.request.finished:
            eligible = [each for each in self._eligible(drafted) if drafted.names or not self._has_rival(drafted, each)]
            chosen = self._choice.among(eligible)
            if chosen is None:
                return
            self.open(drafted, chosen if drafted.names else self.prefer(chosen, eligible))
            having += 1

    def another(self, drafted: DraftedRequest) -> PooledDrafter | None:
        """Returns the drafter that a request would get next; None if no drafter is eligible."""
        return self._choice.among(self._eligible(drafted))

    def _eligible(self, drafted: DraftedRequest) -> list[PooledDrafter]:
        return [
            drafter
            for drafter in self._roster.members
            if drafter.ready and drafter.has_room and drafted.takes(drafter) and not drafter.has(drafted.sequence_id)
        ]

    def _has_rival(self, drafted: DraftedRequest, drafter: PooledDrafter) -> bool:
        rival = self.rival(drafter)
        return rival is not None and rival.has(drafted.sequence_id)

    def refill(self) -> None:
        """Assigns drafters to requests that lack some, after a drafter became ready or has room again."""
        if any(drafter.ready and drafter.has_room for drafter in self._roster.members):
            for drafted in list(self._requests.values()):
                self.assign(drafted)

    def welcome(self, drafter: PooledDrafter) -> None:
        """Assigns requests to a drafter that has just connected, including those it refused before."""
        for drafted in self._requests.values():
            drafted.avoided.discard(drafter)
        self.refill()

    def open(self, drafted: DraftedRequest, drafter: PooledDrafter) -> None:
        """Opens a request with a drafter."""
        self._sink.attach(drafted.sequence_id, drafter.source, hidden_states=drafter.takes_states)
        drafter.open(drafted.request, self._max_tree_nodes)
        drafted.request.span.event("drafter opened", _named(drafter))

    def close(self, drafted: DraftedRequest, drafter: PooledDrafter) -> None:
        """Closes a request with a drafter, if it is open there."""
        if drafter.has(drafted.sequence_id):
            had_room = drafter.has_room
            drafter.close(drafted.sequence_id)
            self._sink.detach(drafted.sequence_id, drafter.source)
            if not drafted.over:
                drafted.request.span.event("drafter closed", _named(drafter))
            if drafter.has_room and not had_room:
                self.refill()

    def recheck(self, drafter: PooledDrafter) -> None:
        """Moves requests that a drafter may no longer draft for to other drafters."""
        for drafted in self.drafted_by(drafter):
            if not drafted.takes(drafter):
                self.close(drafted, drafter)
                self._go_on(drafted, Fallback.REFUSED)
        self.refill()

    def avoid(self, sequence_id: int, drafter: PooledDrafter) -> None:
        """Gives a sequence another drafter; it may get this one again only after a new connection."""
        drafted = self._requests.get(sequence_id)
        if drafted is not None:
            drafted.avoided.add(drafter)
            self._go_on(drafted, Fallback.REFUSED)
            self.refill()

    def dropped(self, drafter: PooledDrafter, sequence_ids: Sequence[int], why: Dropped) -> None:
        """Reassigns sequences that a drafter no longer drafts for; without another drafter they are decoded plainly."""
        for sequence_id in sequence_ids:
            self._sink.detach(sequence_id, drafter.source)
            drafted = self._requests.get(sequence_id)
            if drafted is None:
                continue
            drafted.request.span.event("drafter lost", {**_named(drafter), "draftwire.reason": why.value})
            if why is Dropped.OUT_OF_STEP:
                drafted.reopened += 1
            if why is Dropped.REFUSED or (why is Dropped.OUT_OF_STEP and drafted.reopened > _REOPENINGS):
                drafted.avoided.add(drafter)
            self._go_on(drafted, Fallback[why.name])
        if why is Dropped.FULL:
            self._retry(drafter)
        else:
            self.refill()  # the drafter may have room for another

    def abandon(self, drafter: PooledDrafter) -> None:
        """Closes all remaining requests with a drafter, and assigns them to others."""
        timer = self._retries.pop(drafter, None)
        if timer is not None:
            timer.cancel()
        left = self.drafted_by(drafter)
        for drafted in left:
            self.close(drafted, drafter)
        for drafted in self._requests.values():
            drafted.avoided.discard(drafter)
        for drafted in left:
            self._go_on(drafted, Fallback.RELEASED)

    def redirect(self, old: str, new: str) -> None:
        """Gives requests that name the old drafter the new one while a swap is in progress."""
        self._redirected[old] = _Redirection(new)
        for drafted in self._requests.values():
            self._rename(drafted, old)

    def stop_redirecting(self, old: str, *, back: bool) -> None:
        """Ends the redirection of a swap. back: whether the old drafter stays and gets its requests back."""
        redirection = self._redirected.pop(old)
        if back:
            for drafted, asked in redirection.renamed:
                drafted.names[asked] = old
            self.refill()

    def _go_on(self, drafted: DraftedRequest, why: Fallback) -> None:
        """Assigns another drafter to a request that has lost one, and counts a fallback if it then has none."""
        self.assign(drafted)
        if not drafted.request.finished and not any(drafter.has(drafted.sequence_id) for drafter in self._roster):
            self.counts.fallbacks[why] += 1

    def _rename(self, drafted: DraftedRequest, old: str) -> None:
        redirection = self._redirected[old]
        for asked, name in drafted.names.items():
            if name == old:
                drafted.names[asked] = redirection.new
                redirection.renamed.append((drafted, asked))

    def _retry(self, drafter: PooledDrafter) -> None:
        """Schedules a retry of a full drafter for the time that it named."""
        timer = self._retries.pop(drafter, None)
        if timer is not None:
            timer.cancel()

        def retry() -> None:
            self._retries.pop(drafter, None)
            self.refill()

        # Slightly after has_room becomes true again.
        self._retries[drafter] = asyncio.get_running_loop().call_later(drafter.full_seconds + 0.01, retry)


def _named(drafter: PooledDrafter) -> dict[str, str]:
    """Returns trace event attributes that identify a drafter."""
    return {"draftwire.drafter": drafter.name, "draftwire.drafter.address": drafter.address}
