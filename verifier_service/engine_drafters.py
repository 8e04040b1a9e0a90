"""Drafters that run in the engine's own thread, as members of the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from drafter_pool.announcing.drafter_fields import check_text
from drafter_pool.drafter.pooled_drafter import MemberOwner, PooledDrafter
from drafter_pool.drafter.speculated_request import SpeculatedRequest
from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from draftwire.v1.verdict_pb2 import Verdict
from service_runtime.errors import ServiceError
from service_runtime.process.logs import get_logger
from speculative_engine.drafters.drafter import Drafter
from speculative_engine.tree.proposal import ProposalError
from verifier_service.reading.local_address import make_drafter, read_local_address
from verifier_service.step_loop import StepLoop

log = get_logger(__name__)


class EngineDrafter(PooledDrafter):
    """Nothing travels here: the engine itself opens a sequence when the drafter is attached to it, and tells what was
    committed. So this drafter, once made, is always ready and never full, late or lost."""

    def __init__(self, name: str, address: str, make: Callable[[], Drafter], steps: StepLoop, owner: MemberOwner):
        """make: called in a thread of its own; raises ServiceError, which is what the drafter then shows for good."""
        super().__init__(name, address, owner)
        self.trusted = True
        self._make = make
        self._steps = steps
        self._open: set[int] = set()
        self._released = asyncio.Event()

    @property
    def sequences(self) -> int:
        """See PooledDrafter."""
        return len(self._open)

    @property
    def has_room(self) -> bool:
        """See PooledDrafter."""
        return True

    @property
    def full_seconds(self) -> float:
        """See PooledDrafter."""
        return 0.0

    async def run(self) -> None:
        """See PooledDrafter."""
        try:
            drafter = await asyncio.to_thread(self._make)
        except ServiceError as error:
            log.warning("drafter cannot be made", drafter=self.name, address=self.address, reason=str(error))
            self._set_state(DrafterState.DRAFTER_STATE_UNREACHABLE)
            self.show_error(error)
            self._contact_failed(error)
            await self._released.wait()
            return
        if self._released.is_set():
            return
        self._steps.add_drafter(self.source, drafter)
        self._set_state(DrafterState.DRAFTER_STATE_READY)
        self.contact.set_result(None)
        log.info("drafter ready", drafter=self.name, address=self.address)
        self._owner.drafter_ready(self)
        await self._released.wait()

    def release(self) -> bool:
        """See PooledDrafter."""
        self._open.clear()
        self._released.set()
        return True

    def has(self, sequence_id: int) -> bool:
        """See PooledDrafter."""
        return sequence_id in self._open

    def open(self, request: SpeculatedRequest, max_tree_nodes: int) -> None:
        """See PooledDrafter."""
        self.speed.count_opening()
        self._open.add(request.sequence_id)

    def opened(self, sequence_id: int) -> asyncio.Future[bool]:
        """See PooledDrafter. It reads as fast as the target does, so there is nothing to wait for."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        future.set_result(True)
        return future

    def send_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        """See PooledDrafter. The engine tells it."""

    def close(self, sequence_id: int) -> None:
        """See PooledDrafter."""
        self._open.discard(sequence_id)

    def refuse(self, sequence_id: int, epoch: int, error: ProposalError) -> bool:
        """See PooledDrafter. Its proposals are not read from a wire: a fault in one is a fault of this program."""
        return False


class EngineDrafterFactory:
    """See the pool's protocol of this name."""

    def __init__(self, steps: StepLoop, uses_hub: Callable[[str], bool]):
        """uses_hub: whether the model of an address, in its one form, may be a hub id."""
        self._steps = steps
        self._uses_hub = uses_hub

    def read(self, field: str, address: str) -> str:
        """See the protocol."""
        check_text(field, address)
        return read_local_address(field, address)

    def make(self, name: str, address: str, owner: MemberOwner) -> EngineDrafter:
        """See the protocol."""
        target, hub = self._steps.engine.model, self._uses_hub(address)
        return EngineDrafter(name, address, lambda: make_drafter(address, target, hub=hub), self._steps, owner)
