"""The base class of the pool's drafters, remote or local: state, measurements and open sequences."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, cast

import grpc
from google.rpc import status_pb2

from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.learning_pb2 import LearningStatus
from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire_core.engine.engine.step_result import SequenceFeatures, SequenceOutcome
from draftwire_core.engine.tree.proposal import ProposalError
from draftwire_core.pool.drafter import draft_messages
from draftwire_core.pool.drafter.draft_messages import Dropped
from draftwire_core.pool.drafter.source import new_source
from draftwire_core.pool.drafter.speculated_request import SpeculatedRequest
from draftwire_core.pool.standing.drafter_stats import DrafterStats, DraftingSpeed
from draftwire_core.pool.standing.pause_policy import PausePolicy
from draftwire_core.runtime.errors import ServiceError, failed_precondition
from draftwire_core.runtime.rpc.message_stream import StreamBroken

DETACHED = "it was detached meanwhile"
"""Why a call that waits for a drafter ends when the drafter is released."""


class DrafterEvents(Protocol):
    """Events that drafters report to the pool. Called in the event loop."""

    def drafter_changed(self, drafter: PooledDrafter) -> None:
        """Reports a change of something that the list of drafters shows."""

    def drafter_ready(self, drafter: PooledDrafter) -> None:
        """Reports that the drafter is ready to draft; it has no sequences yet."""

    def drafter_renewed(self, drafter: PooledDrafter) -> None:
        """Reports that the model has changed since the previous connection."""

    def drafter_replaced(self, drafter: PooledDrafter, delay: float) -> None:
        """Reports that new streams to the address get another model. The pool follows after `delay` seconds; the
        current stream continues for a while."""

    def drafter_dropped(self, drafter: PooledDrafter, sequence_ids: Sequence[int], why: Dropped) -> None:
        """Reports that the drafter no longer drafts for these sequences."""


class PooledDrafter(ABC):
    """One drafter's name, state, measurements and open sequences. Used in the event loop only."""

    contact_seconds: ClassVar[float] = 10.0
    """Maximum time that a caller waits for the drafter to become ready."""

    def __init__(self, name: str, address: str, events: DrafterEvents):
        self.name = name
        self.address = address
        self.source = new_source(name)
        """The engine's name for the drafter; it changes with each model that answers at the address."""
        self.labels: Mapping[str, str] = {}
        self.trusted = False
        """Whether the draft distributions that the drafter reports are trusted; the rejection rule needs that."""
        self.announced = False
        self.announcer: str | None = None
        """Name of the token in the drafter's announcement; None without one."""
        self.given = False
        """Whether the drafter was attached by a call or a setting, and so stays when its heartbeats stop."""
        self.attached_at = time.time()
        self.stats = DrafterStats()
        self.speed = DraftingSpeed()
        self.pause_policy = PausePolicy()
        self.last_error: status_pb2.Status | None = None
        self.learning: LearningStatus | None = None
        """The last report of the learner that trains the draft model; None if none does."""
        self.contact: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the drafter has been ready; holds the StreamBroken or ServiceError if the first attempt failed or
        the drafter was released before."""
        self._events = events
        self._state = DrafterState.DRAFTER_STATE_CONNECTING
        self._draining = False

    @property
    def state(self) -> DrafterState:
        """The drafter's state in the pool."""
        return DrafterState.DRAFTER_STATE_DRAINING if self._draining else self._state

    @property
    def ready(self) -> bool:
        """Whether the drafter drafts and takes new sequences."""
        return self.state == DrafterState.DRAFTER_STATE_READY

    @property
    def goes_first(self) -> bool:
        """Whether requests go to this drafter before others, because its speed has not been measured yet."""
        return not self.speed.measured

    @property
    def draws(self) -> bool:
        """Whether the drafter can and may draft for requests with the rejection rule."""
        return self.trusted

    @property
    def model(self) -> ModelInfo | None:
        """The drafter's model; None until it is known, and for a drafter without a model."""
        return None

    @property
    def takes_states(self) -> bool:
        """Whether verdicts to this drafter carry the target's last hidden states."""
        return False

    @property
    def busy(self) -> bool:
        """Whether the drafter computes while a step runs; those in the engine's own thread do not."""
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
        """Seconds until a full drafter may be asked again; 0 if it is not full."""

    @abstractmethod
    async def run(self) -> None:
        """Keeps the drafter ready, or keeps trying, until it is released."""

    @abstractmethod
    def release(self) -> bool:
        """Stops drafting. Returns True if `run` then returns by itself, False if the caller must cancel it."""

    @abstractmethod
    def has(self, sequence_id: int) -> bool:
        """Whether a sequence is open."""

    @abstractmethod
    def open(self, request: SpeculatedRequest, max_tree_nodes: int) -> None:
        """Opens a sequence with its committed tokens; `opened` is done when the drafter has caught up."""

    @abstractmethod
    def opened(self, sequence_id: int) -> asyncio.Future[bool]:
        """Returns a future that resolves to whether the drafter has caught up with an open sequence. Must not be
        cancelled."""

    @abstractmethod
    def send_verdicts(self, outcomes: Sequence[SequenceOutcome]) -> None:
        """Sends a step's verdicts for the sequences that are open with this drafter."""

    @abstractmethod
    def step_begun(self, step_seconds: float) -> None:
        """Learns that a step has begun, which is expected to take so long."""

    @abstractmethod
    def send_features(self, features: Sequence[SequenceFeatures]) -> None:
        """Sends features that were made for this drafter."""

    @abstractmethod
    def close(self, sequence_id: int) -> None:
        """Closes a sequence; does nothing if it is not open."""

    @abstractmethod
    def refuse(self, sequence_id: int, epoch: int, error: ProposalError) -> bool:
        """Reports a refused proposal to the drafter and closes the sequence. Returns False if that opening has already
        ended."""

    async def wait_ready(self) -> None:
        """Waits until the drafter is ready for the first time. Raises ServiceError if that fails or takes too long."""
        if self.ready:
            return
        try:
            async with asyncio.timeout(self.contact_seconds):
                await asyncio.shield(self.contact)
        except (StreamBroken, TimeoutError) as error:
            raise self.unreachable(error) from error
        if not self.ready:
            raise self.unreachable()

    def unreachable(self, why: Exception | str | None = None) -> ServiceError:
        """Returns the error for a call that needs this drafter while it is not ready.

        Its status is the drafter's own if the two sides are incompatible (FAILED_PRECONDITION), otherwise UNAVAILABLE.
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
        """Takes over another drafter's place in the pool: all state that belongs to no model and no address."""
        self.labels, self.stats = predecessor.labels, predecessor.stats
        self.announced, self.given = predecessor.announced, predecessor.given
        self.announcer = predecessor.announcer
        self.trusted = predecessor.trusted
        self.attached_at = predecessor.attached_at
        self.learning = predecessor.learning

    def drain(self) -> None:
        """Stops opening sequences."""
        self._set_draining(True)

    def resume(self) -> None:
        """Allows sequences to be opened again."""
        self._set_draining(False)

    def show_error(self, error: StreamBroken | ServiceError) -> None:
        """Shows an error in the list of drafters."""
        status = error.status if isinstance(error, StreamBroken) else error.to_status()
        self.last_error = draft_messages.bounded(status)
        self._events.drafter_changed(self)

    def show_learning(self, learning: LearningStatus) -> None:
        """Shows a learner's report in the list of drafters, with the time of its arrival."""
        self.learning = learning
        self.learning.reported_at.FromNanoseconds(time.time_ns())
        self._events.drafter_changed(self)

    def charge_features(self, seconds: float) -> None:
        """Charges the time that the engine's thread took for the features that the drafter reads."""
        self.pause_policy.charge_features(seconds)

    def count_step(self, drafting_seconds: float, seconds: float) -> None:
        """Counts a drafting step. seconds: the time by which the drafter's accepted tokens are divided."""
        self.stats.count_step(drafting_seconds)
        self.speed.count_step(seconds)

    def _contact_failed(self, error: StreamBroken | ServiceError) -> None:
        if not self.contact.done():
            self.contact.set_exception(error)
            self.contact.exception()  # retrieved, so that asyncio does not complain when nobody waits for it

    def _set_state(self, state: DrafterState) -> None:
        if state != self._state:
            self._state = state
            self._events.drafter_changed(self)

    def _set_draining(self, draining: bool) -> None:
        if draining != self._draining:
            self._draining = draining
            self._events.drafter_changed(self)
