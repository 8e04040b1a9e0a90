"""A loaded model in service: its draft loop, hello and drafting sessions."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from drafter_service.conversation.draft_loop import DraftingCounts, DraftLoop
from drafter_service.conversation.drafting_session import DraftingSession
from drafter_service.conversation.handshake import MOST_TOKENS, own_hello
from drafter_service.models.loaded_features import LoadedFeatureNetwork
from drafter_service.models.loaded_heads import LoadedHeads
from drafter_service.models.loaded_model import threads_of
from drafter_service.models.loading import Loaded
from drafter_service.settings import DrafterSettings
from drafter_service.verifiers.shares import VerifierShares
from draftwire.v1 import drafter_service_pb2, model_info_pb2
from draftwire.v1.calibration_pb2 import AcceptanceClass
from draftwire.v1.step_cost_pb2 import StepCost
from draftwire_core.engine.drafters.drafter import LimitedDrafter
from draftwire_core.engine.drafters.medusa import MedusaDrafter
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter
from draftwire_core.engine.drafters.translation.translating import TranslatingDrafter
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.kv.kv_slots import SlotPool
from draftwire_core.engine.model.features.feature_map import FeatureMap
from draftwire_core.runtime.duration import duration
from draftwire_core.runtime.observability.tracing import NO_TRACING, Tracing
from draftwire_core.runtime.rpc.message_stream import MessageStream


class ServingModel:
    """Serves verifiers with one model, from its first stream to its last. Used in the event loop only.

    A stream keeps its model even if the drafter loads another.
    """

    def __init__(
        self,
        loaded: Loaded,
        settings: DrafterSettings,
        shares: VerifierShares,
        on_failure: Callable[[BaseException], None],
        tracing: Tracing = NO_TRACING,
    ) -> None:
        """Starts the drafting thread.

        shares: the shares of all verifiers, shared by all models. on_failure: called when the drafting thread has
        ended by an error.
        """
        self._shares = shares
        self._tracing = tracing
        self._hidden_size = loaded.heads.hidden_size if isinstance(loaded, LoadedHeads) else 0
        self.hello: model_info_pb2.PeerInfo = own_hello(
            settings,
            loaded.info,
            slots=None if isinstance(loaded, LoadedHeads) else loaded.model.pool.capacity,
            features=loaded.features if isinstance(loaded, LoadedFeatureNetwork) else None,
        )
        """The drafter's hello while it serves this model."""
        self._idle_seconds = settings.stream_idle_seconds
        self.mapping: FeatureMap | None = None
        """The map from a target's hidden states to the features that this model reads, if it reads any."""
        self._pool: SlotPool | None = None
        self._growth: TreeGrowth | None = None
        drafter: LimitedDrafter
        keep_alive: Callable[[], float | None] | None = None
        if isinstance(loaded, LoadedHeads):
            drafter = MedusaDrafter(loaded.heads)
        else:
            self._pool, self._growth = loaded.model.pool, TreeGrowth(loaded.cost)
            keep_alive = loaded.model.keep_alive
            if isinstance(loaded, LoadedFeatureNetwork):
                drafter = loaded.make(self._growth)
                self.mapping = loaded.mapping
            elif loaded.token_map is None:
                drafter = DraftModelDrafter(loaded.model, self._growth)
            else:
                drafter = TranslatingDrafter(loaded.model, loaded.token_map, self._growth)
        # More tokens than the KV cache holds may wait, but a flood must not exhaust memory.
        most_waiting = 4 * (self._pool.capacity if self._pool is not None else settings.kv_slots)
        if self.mapping is None:  # otherwise a feature may wait with each of them, and no opening is that long
            most_waiting = max(MOST_TOKENS, most_waiting)
        self._drafting = DraftLoop(
            drafter,
            on_failure=on_failure,
            threads=threads_of(settings),
            keep_alive=keep_alive,
            max_streams=settings.max_streams,
            max_waiting_tokens=most_waiting,
        )
        self._drafting.start()
        self._sessions: set[DraftingSession] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def streams(self) -> int:
        """Number of drafting sessions."""
        return len(self._sessions)

    @property
    def sequences(self) -> int:
        """Approximate number of open sequences."""
        return self._drafting.sequences

    def add_to(self, counts: DraftingCounts) -> None:
        """Adds this model's counts to `counts`."""
        counts.add(self._drafting.counts, self._drafting.part_seconds())

    def tell_shares(self, shares: Mapping[str, drafter_service_pb2.VerifierShare]) -> None:
        """Adds the approximate sequences and slots of this model's verifiers to their shares, by verifier name."""
        for session in self._sessions:
            shares[session.verifier].open_sequences += session.sequences
        for verifier, use in self._drafting.slot_use().items():
            if verifier.name in shares:  # otherwise its last stream has just ended
                shares[verifier.name].waiting_sequences += use.waiting
                shares[verifier.name].used_slots += use.slots

    def slots(self) -> tuple[int, int]:
        """Returns the approximate number of used KV slots, and the total number; heads have none."""
        return (self._pool.used, self._pool.capacity) if self._pool is not None else (0, 0)

    async def converse(self, stream: MessageStream[Any, Any], verifier: str) -> None:
        """Serves a verifier's Draft stream. Raises ServiceError, alone or in an ExceptionGroup, and StreamBroken."""
        with self._shares.stream(verifier) as share:
            session = DraftingSession(
                stream, self._drafting, self.hello, share, self._idle_seconds, self._hidden_size, self._tracing
            )
            self._sessions.add(session)
            self._empty.clear()
            try:
                await session.run()
            finally:
                self._sessions.discard(session)
                if not self._sessions:
                    self._empty.set()

    def tell_replaced(self, model: model_info_pb2.ModelInfo) -> None:
        """Notifies every verifier that new streams get another model."""
        for session in self._sessions:
            session.tell_replaced(model)

    def end_sessions(self) -> None:
        """Ends all streams cleanly; `wait_empty` returns when the last has ended."""
        for session in self._sessions:
            session.end()

    async def wait_empty(self) -> None:
        """Returns once there are no sessions."""
        await self._empty.wait()

    async def status(self) -> drafter_service_pb2.DrafterStatus:
        """Returns the model's status. Needs a deadline, as the drafting thread answers. Raises ThreadEnded,
        TooManyCommands."""
        status = drafter_service_pb2.DrafterStatus(
            streams=self.streams,
            open_sequences=await self._drafting.open_sequences(),
            times=self._drafting.step_times(),
            drafted_nodes=self._drafting.drafted_nodes,
        )
        pool, growth = self._pool, self._growth
        if pool is not None and growth is not None:  # heads hold no slots, and their cost does not vary
            status.used_slots = await self._drafting.call(lambda: pool.used)
            status.total_slots = pool.capacity
            status.step_costs.extend(
                StepCost(rows=rows, time=duration(seconds)) for rows, seconds in growth.cost.points()
            )
            status.classes.extend(AcceptanceClass(**each._asdict()) for each in growth.acceptance.classes())
        return status

    async def stop(self) -> None:
        """Stops drafting and releases the model. Must be called once, when there are no sessions left."""
        await self._drafting.stop()
