"""A drafter of the pool, wherever it runs: what the pool knows of it and asks of it."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Protocol

from google.rpc import status_pb2

from drafter_pool.drafter import draft_messages
from drafter_pool.drafter.drafter_stats import DrafterStats, DraftingSpeed
from drafter_pool.drafter.pause_policy import DrafterCredit
from drafter_pool.drafter.source import new_source
from drafter_pool.drafter.speculated_request import SpeculatedRequest
from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire.v1.verdict_pb2 import Verdict
from service_runtime.errors import ServiceError
from service_runtime.rpc.message_stream import StreamBroken
from speculative_engine.tree.proposal import ProposalError


class MemberOwner(Protocol):
    """Who is told what happens with a drafter."""

    def drafter_changed(self, drafter: PooledDrafter) -> None:
        """What the drafter shows changed."""

    def drafter_ready(self, drafter: PooledDrafter) -> None:
        """The drafter drafts from now on; it has no sequence yet."""


class PooledDrafter(ABC):
    """One drafter's name and numbers, and how sequences are opened with it. Used in the event loop only."""

    def __init__(self, name: str, address: str, owner: MemberOwner):
        self.name = name
        self.address = address
        self.source = new_source(name)
        """What the engine calls it: another one for each model that has answered at the address."""
        self.labels: Mapping[str, str] = {}
        self.trusted = False
        """To say truly what its tokens were drawn from."""
        self.announced = False
        self.announcer: str | None = None
        """Name of the token that it was announced with; None without one."""
        self.given = False
        """Attached by hand or by a setting: it stays when its heartbeats stop."""
        self.attached_at = time.time()
        self.stats = DrafterStats()
        self.speed = DraftingSpeed()
        self.credit = DrafterCredit()
        self.last_error: status_pb2.Status | None = None
        self.contact: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it was ready for the first time; holds the StreamBroken or ServiceError if that failed."""
        self._owner = owner
        self._state = DrafterState.DRAFTER_STATE_CONNECTING
        self._draining = False

    @property
    def state(self) -> DrafterState:
        """Where the drafter stands in the pool."""
        return DrafterState.DRAFTER_STATE_DRAINING if self._draining else self._state

    @property
    def ready(self) -> bool:
        """Whether the drafter drafts, and is to go on with it."""
        return self.state == DrafterState.DRAFTER_STATE_READY

    @property
    def goes_first(self) -> bool:
        """Whether requests go to it before others: nothing is known of it yet."""
        return not self.speed.measured

    @property
    def draws(self) -> bool:
        """Whether it may draft, and knows how, for requests with the rule of rejection."""
        return self.trusted

    @property
    def model(self) -> ModelInfo | None:
        """Its model; None before that is known, and where there is none."""
        return None

    @property
    def takes_states(self) -> bool:
        """Whether verdicts are to bring it the target's last hidden states."""
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
        """Seconds for which the drafter wants no more sequences."""

    @abstractmethod
    async def run(self) -> None:
        """Be ready, or try to, until released."""

    @abstractmethod
    def release(self) -> bool:
        """Draft no more. True if `run` then returns by itself, False if it is to be cancelled."""

    @abstractmethod
    def has(self, sequence_id: int) -> bool:
        """Whether a sequence is open."""

    @abstractmethod
    def open(self, request: SpeculatedRequest, max_tree_nodes: int) -> None:
        """Open a sequence with the tokens it has; `opened` tells when the drafter has caught up."""

    @abstractmethod
    def opened(self, sequence_id: int) -> asyncio.Future[bool]:
        """Of an open sequence: whether the drafter has caught up, as soon as that is known. Must not be cancelled."""

    @abstractmethod
    def send_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        """Tell what a step committed, for the sequences among them that are open here."""

    @abstractmethod
    def close(self, sequence_id: int) -> None:
        """Close a sequence; does nothing if it is not open."""

    @abstractmethod
    def refuse(self, sequence_id: int, epoch: int, error: ProposalError) -> bool:
        """Tell the drafter that its proposal was refused, and close the sequence here; False if that opening has
        ended already."""

    def drain(self) -> None:
        """Open no more sequences."""
        self._set_draining(True)

    def resume(self) -> None:
        """Open sequences again."""
        self._set_draining(False)

    def show_error(self, error: StreamBroken | ServiceError) -> None:
        """Keep a fault for those who ask."""
        status = error.status if isinstance(error, StreamBroken) else error.to_status()
        self.last_error = draft_messages.bounded(status)
        self._owner.drafter_changed(self)

    def count_step(self, drafting_seconds: float, seconds: float) -> None:
        """The drafter made a drafting step; `seconds`: of the time that its accepted tokens are set against."""
        self.stats.count_step(drafting_seconds)
        self.speed.count_step(seconds)

    def _contact_failed(self, error: StreamBroken | ServiceError) -> None:
        if not self.contact.done():
            self.contact.set_exception(error)
            self.contact.exception()  # seen, also when nobody waits for it

    def _set_state(self, state: DrafterState) -> None:
        if state != self._state:
            self._state = state
            self._owner.drafter_changed(self)

    def _set_draining(self, draining: bool) -> None:
        if draining != self._draining:
            self._draining = draining
            self._owner.drafter_changed(self)
