"""A drafter of the pool, wherever it runs: its state, its measurements, and the sequences that are open with it."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import grpc
from google.rpc import status_pb2

from drafter_pool.drafter import draft_messages
from drafter_pool.drafter.draft_messages import Dropped
from drafter_pool.drafter.drafter_stats import DrafterStats, DraftingSpeed
from drafter_pool.drafter.pause_policy import PausePolicy
from drafter_pool.drafter.source import new_source
from drafter_pool.drafter.speculated_request import SpeculatedRequest
from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.model_info_pb2 import ModelInfo
from service_runtime.errors import ServiceError, failed_precondition
from service_runtime.rpc.message_stream import StreamBroken
from speculative_engine.engine.step_result import SequenceOutcome
from speculative_engine.tree.proposal import ProposalError

_CONTACT_SECONDS = 10.0
"""Time that a drafter has to become ready for a caller who waits for it."""


class DrafterEvents(Protocol):
    """The pool, as its drafters report to it. Called in the event loop."""

    def drafter_changed(self, drafter: PooledDrafter) -> None:
        """Something that lists of drafters show has changed."""

    def drafter_ready(self, drafter: PooledDrafter) -> None:
        """The drafter drafts from now on; it has no sequence yet."""

    def drafter_renewed(self, drafter: PooledDrafter) -> None:
        """Another model answers than before the connection was lost."""

    def drafter_replaced(self, drafter: PooledDrafter, delay: float) -> None:
        """New streams to the address get another model, to be followed after `delay` seconds; this stream goes on for
        a while."""

    def drafter_dropped(self, drafter: PooledDrafter, sequence_ids: Sequence[int], why: Dropped) -> None:
        """The drafter no longer drafts for these sequences."""


class PooledDrafter(ABC):
    """Name, state and measurements of one drafter, and its open sequences. Used in the event loop only."""

    def __init__(self, name: str, address: str, events: DrafterEvents):
        self.name = name
        self.address = address
        self.source = new_source(name)
        """The engine's name for the drafter: a new one for each model that has answered at the address."""
        self.labels: Mapping[str, str] = {}
        self.trusted = False
        """Whether the distributions that it reports for its tokens are believed."""
        self.announced = False
        self.announcer: str | None = None
        """Name of the token that the drafter was announced with; None without one."""
        self.given = False
        """Whether it was attached by a call or a setting: then it stays when its heartbeats stop."""
        self.attached_at = time.time()
        self.stats = DrafterStats()
        self.speed = DraftingSpeed()
        self.credit = PausePolicy()
        self.last_error: status_pb2.Status | None = None
        self.contact: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the drafter was ready for the first time; holds the StreamBroken or ServiceError if that failed."""
        self._events = events
        self._state = DrafterState.DRAFTER_STATE_CONNECTING
        self._draining = False

    @property
    def state(self) -> DrafterState:
        """State of the drafter in the pool."""
        return DrafterState.DRAFTER_STATE_DRAINING if self._draining else self._state

    @property
    def ready(self) -> bool:
        """Whether the drafter drafts and takes new sequences."""
        return self.state == DrafterState.DRAFTER_STATE_READY

    @property
    def goes_first(self) -> bool:
        """Whether requests go to this drafter before others, since nothing has been measured yet."""
        return not self.speed.measured

    @property
    def draws(self) -> bool:
        """Whether the drafter can and may draft for requests with the rule of rejection."""
        return self.trusted

    @property
    def model(self) -> ModelInfo | None:
        """The drafter's model; None before it is known, and for a drafter without one."""
        return None

    @property
    def takes_states(self) -> bool:
        """Whether verdicts carry the target's last hidden states to this drafter."""
        return False

    @property
    @abstractmethod
    def sequences(self) -> int:
        """Number of open sequences."""

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether another sequence may be opened."""

    @property
    @abstractmethod
    def full_seconds(self) -> float:
        """Seconds until a drafter that was full may be asked again; 0 if it is not full."""

    @abstractmethod
    async def run(self) -> None:
        """Becomes ready, or keeps trying, until released."""

    @abstractmethod
    def release(self) -> bool:
        """Stop drafting. Returns True if `run` then returns by itself, False if it is to be cancelled."""

    @abstractmethod
    def has(self, sequence_id: int) -> bool:
        """Whether a sequence is open."""

    @abstractmethod
    def open(self, request: SpeculatedRequest, max_tree_nodes: int) -> None:
        """Open a sequence with the tokens it has; `opened` is done when the drafter has caught up."""

    @abstractmethod
    def opened(self, sequence_id: int) -> asyncio.Future[bool]:
        """Whether the drafter has caught up with an open sequence, as soon as that is known. Not to be cancelled."""

    @abstractmethod
    def send_verdicts(self, outcomes: Sequence[SequenceOutcome]) -> None:
        """Send what a step committed, for those of the sequences that are open here."""

    @abstractmethod
    def close(self, sequence_id: int) -> None:
        """Close a sequence; does nothing if it is not open."""

    @abstractmethod
    def refuse(self, sequence_id: int, epoch: int, error: ProposalError) -> bool:
        """Report to the drafter that its proposal was refused, and close the sequence here. Returns False if that
        opening has ended already."""

    async def wait_ready(self) -> None:
        """Wait until the drafter is ready for the first time. Raises ServiceError if that fails or takes too long."""
        if self.ready:
            return
        try:
            async with asyncio.timeout(_CONTACT_SECONDS):
                await asyncio.shield(self.contact)
        except (StreamBroken, TimeoutError) as error:
            raise self.unreachable(error) from error
        if not self.ready:
            raise self.unreachable()

    def unreachable(self, why: Exception | str | None = None) -> ServiceError:
        """The error for a caller who wants this drafter while it is not ready.

        Its status is the drafter's own where the two sides do not fit (FAILED_PRECONDITION), UNAVAILABLE otherwise.
        """
        if isinstance(why, StreamBroken) and why.code is grpc.StatusCode.FAILED_PRECONDITION:
            reason = dict(ErrorReason.items()).get(f"ERROR_REASON_{why.reason_name}")
            if reason is not None:
                return failed_precondition(cast(ErrorReason, reason), why.status.message)
        cause = f": {why}" if why is not None and str(why) else ""
        return ServiceError(
            grpc.StatusCode.UNAVAILABLE,
            ErrorReason.ERROR_REASON_DRAFTER_UNREACHABLE,
            f"drafter at {self.address} is not ready{cause}",
        )

    def inherit(self, predecessor: PooledDrafter) -> None:
        """Take over the place of another drafter in the pool: everything but what belongs to a model or an address."""
        self.labels, self.stats = predecessor.labels, predecessor.stats
        self.announced, self.given = predecessor.announced, predecessor.given
        self.announcer = predecessor.announcer
        self.trusted = predecessor.trusted
        self.attached_at = predecessor.attached_at

    def drain(self) -> None:
        """Open no more sequences."""
        self._set_draining(True)

    def resume(self) -> None:
        """Open sequences again."""
        self._set_draining(False)

    def show_error(self, error: StreamBroken | ServiceError) -> None:
        """Show a fault in lists of drafters."""
        status = error.status if isinstance(error, StreamBroken) else error.to_status()
        self.last_error = draft_messages.bounded(status)
        self._events.drafter_changed(self)

    def count_step(self, drafting_seconds: float, seconds: float) -> None:
        """Count a drafting step. seconds: the time that the drafter's accepted tokens are set against."""
        self.stats.count_step(drafting_seconds)
        self.speed.count_step(seconds)

    def _contact_failed(self, error: StreamBroken | ServiceError) -> None:
        if not self.contact.done():
            self.contact.set_exception(error)
            self.contact.exception()  # seen, also when nobody waits for it

    def _set_state(self, state: DrafterState) -> None:
        if state != self._state:
            self._state = state
            self._events.drafter_changed(self)

    def _set_draining(self, draining: bool) -> None:
        if draining != self._draining:
            self._draining = draining
            self._events.drafter_changed(self)
