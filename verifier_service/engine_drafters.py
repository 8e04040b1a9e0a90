"""Drafters that run in the engine's own thread, as members of the pool."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial

from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from draftwire_core.engine.checkpoint.load_errors import abandoned_by
from draftwire_core.engine.drafters.drafter import Drafter
from draftwire_core.engine.engine.step_result import SequenceFeatures, SequenceOutcome
from draftwire_core.engine.loading.methods import DraftedEngine
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.engine.tree.proposal import ProposalError
from draftwire_core.pool.announcing.drafter_fields import check_text
from draftwire_core.pool.drafter.pooled_drafter import DETACHED, DrafterEvents, PooledDrafter
from draftwire_core.pool.drafter.speculated_request import SpeculatedRequest
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.process.lifecycle import Shutdown
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.memory import free_locals, trim_heap
from draftwire_core.runtime.process.threads import call_in_thread
from draftwire_core.runtime.rpc.handshake import incompatible
from verifier_service.reading.local_address import make_drafter, read_local_address
from verifier_service.step_loop import StepLoop

log = get_logger(__name__)


class EngineDrafter(PooledDrafter):
    """A drafter in the engine's thread. No messages are sent: the engine opens a sequence when the drafter is attached
    to it, and commits tokens to the drafter. Once made, this drafter is always ready and never full, late or lost."""

    contact_seconds = 600.0  # it may have to fetch and load a model

    def __init__(
        self,
        name: str,
        address: str,
        make: Callable[[], Drafter],
        steps: StepLoop,
        events: DrafterEvents,
        shutdown: Shutdown,
    ):
        """make: called in a thread of its own, without which the process may end; raises ServiceError, which the
        drafter then shows permanently."""
        super().__init__(name, address, events)
        self.trusted = True
        self._make = make
        self._steps = steps
        self._shutdown = shutdown
        self._open: set[int] = set()
        self._released = asyncio.Event()
        self._abandoned = threading.Event()

    @property
    def sequences(self) -> int:
        """Number of open sequences."""
        return len(self._open)

    @property
    def has_room(self) -> bool:
        """Always True: the engine limits its sequences itself."""
        return True

    @property
    def full_seconds(self) -> float:
        """Always 0: the drafter is never full."""
        return 0.0

    async def run(self) -> None:
        """Makes the drafter and adds it to the engine, then waits until it is released."""
        try:
            drafter = await call_in_thread(self._load, name="drafter-load", shutdown=self._shutdown)
        except ServiceError as error:
            free_locals(error)
            if self._released.is_set():
                log.info("loading cancelled", drafter=self.name, address=self.address)
                await asyncio.to_thread(trim_heap)
                return
            log.warning("drafter load failed", drafter=self.name, address=self.address, reason=str(error))
            refused = incompatible(error.code, error.reason_name)
            self._set_state(
                DrafterState.DRAFTER_STATE_INCOMPATIBLE if refused else DrafterState.DRAFTER_STATE_UNREACHABLE
            )
            self.show_error(error)
            self._contact_failed(error)
            await self._released.wait()
            return
        if self._released.is_set():
            log.info("loading cancelled", drafter=self.name, address=self.address)
            return
        self._steps.add_drafter(self.source, drafter)
        self._set_state(DrafterState.DRAFTER_STATE_READY)
        self.contact.set_result(None)
        log.info("drafter loaded", drafter=self.name, address=self.address)
        self._events.drafter_ready(self)
        await self._released.wait()

    def release(self) -> bool:
        """Stops drafting; `run` then returns by itself. The sequences stay open until they are closed."""
        self._contact_failed(self.unreachable(DETACHED))
        self._released.set()
        self._abandoned.set()
        return True

    def _load(self) -> Drafter:
        """Makes the drafter, unless it is released meanwhile."""
        with abandoned_by(self._abandoned):
            return self._make()

    def has(self, sequence_id: int) -> bool:
        """Whether a sequence is open."""
        return sequence_id in self._open

    def open(self, request: SpeculatedRequest, max_tree_nodes: int) -> None:
        """Counts a sequence, which the engine itself opens with the drafter."""
        self.speed.count_opening()
        self._open.add(request.sequence_id)

    def opened(self, sequence_id: int) -> asyncio.Future[bool]:
        """Returns a completed future: the drafter reads as fast as the target does."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        future.set_result(True)
        return future

    def send_verdicts(self, outcomes: Sequence[SequenceOutcome]) -> None:
        """Does nothing: the engine commits to the drafter itself."""

    def step_begun(self, step_seconds: float) -> None:
        """Does nothing: drafters in the engine's thread draft between its steps."""

    def send_features(self, features: Sequence[SequenceFeatures]) -> None:
        """Does nothing: drafters in the engine find features where they are kept."""

    def close(self, sequence_id: int) -> None:
        """Forgets a sequence; does nothing if it is not open."""
        self._open.discard(sequence_id)

    def refuse(self, sequence_id: int, epoch: int, error: ProposalError) -> bool:
        """Returns False: a faulty proposal that never crossed the wire is a bug in this program."""
        return False


class EngineDrafterFactory:
    """Makes drafters in the engine's thread from `local:` addresses."""

    def __init__(self, steps: StepLoop, uses_hub: Callable[[str], bool], tokenizer: Tokenizer, shutdown: Shutdown):
        """uses_hub: whether the model of a normalized address may be a hub id. tokenizer: the target's. shutdown: of
        the process, which may end while a drafter is being made."""
        self._tokenizer = tokenizer
        self._steps = steps
        self._uses_hub = uses_hub
        self._shutdown = shutdown

    def read(self, field: str, address: str) -> str:
        """Returns the normalized form of an address in a request's field. Raises ServiceError."""
        check_text(field, address)
        return read_local_address(field, address)

    def make(self, name: str, address: str, events: DrafterEvents) -> EngineDrafter:
        """Returns the drafter of a normalized address; its model is loaded when it runs."""
        engine, hub = self._steps.engine, self._uses_hub(address)
        make = partial(
            make_drafter, address, engine.model, hub=hub, engine=DraftedEngine(engine.limits, self._tokenizer)
        )
        return EngineDrafter(name, address, make, self._steps, events, self._shutdown)
