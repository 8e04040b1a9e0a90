"""Runs the verification engine in its thread and delivers its results to the event loop, one wake-up per step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from draftwire.v1.verifier_service_pb2 import EngineStatus
from draftwire_core.engine.drafters.drafter import Drafter
from draftwire_core.engine.engine.feature_streams import FeatureKind
from draftwire_core.engine.engine.scoring import ScoreSpec
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.step_result import SequenceFeatures, StepResult
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.model.features.taps import Tap
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.tree.proposal import ProposalError
from draftwire_core.pool.drafter.proposal_sink import ProposalSink, RefusedProposal, SequenceProposal
from draftwire_core.runtime.errors import at_capacity
from draftwire_core.runtime.threads.command_thread import TooManyCommands
from draftwire_core.runtime.threads.engine_thread import EngineThread
from verifier_service.engine_status import engine_status

_RETRY_SECONDS = 1.0


class StepListener(Protocol):
    """The receiver of the engine's results, in the event loop."""

    def on_step_begun(self, step_seconds: float) -> None:
        """Takes the expected duration of a step that drafters outside the engine's thread draft for, as it begins."""

    def on_step(self, result: StepResult, stale: dict[tuple[int, str], int]) -> None:
        """Takes a step's result, and the stale nodes counted since the last one, by (sequence id, source)."""

    def on_features(self, features: list[SequenceFeatures]) -> None:
        """Takes features that are known before a sequence's first step, from the prefix cache."""

    def on_proposal_fault(self, fault: RefusedProposal) -> None:
        """Takes a proposal that contradicts itself."""

    def on_failure(self, error: BaseException) -> None:
        """Takes what ended the engine's thread."""


class Ordered(Protocol):
    """A request whose sequence an engine runs."""

    @property
    def spec(self) -> SequenceSpec:
        """The engine's part of the request."""


class StepLoop(ProposalSink):
    """Gives the event loop access to the engine. All methods are called in the event loop."""

    def __init__(self, engine: VerificationEngine, prepare: Callable[[], None]):
        """prepare: runs once in the engine's thread."""
        self.engine = engine
        self._prepare = prepare
        self._thread = EngineThread(self._work, name="verification-engine", on_failure=self._fail)
        self._stale: dict[tuple[int, str], int] = {}
        self._listener: StepListener | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def places(self) -> int:
        """How many requests run at once: the maximum, or the number running if others wait for KV slots."""
        return self.engine.places

    @property
    def cost(self) -> StepCost:
        """The cost of a step by its rows."""
        return self.engine.planner.cost

    @property
    def waited(self) -> float:
        """Seconds that the engine has waited for proposals."""
        return self.engine.clock.waited

    def status(self) -> EngineStatus:
        """Returns what the engine holds, does and decides."""
        return engine_status(self.engine)

    def start(self, listener: StepListener) -> None:
        """Starts the engine's thread, whose results go to a listener."""
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self._thread.post(self._prepare)

    async def stop(self) -> None:
        """Ends the engine's thread after its current step."""
        await self._thread.stop()

    def add(self, order: Ordered) -> None:
        """Runs a request's sequence. Raises ServiceError (AT_CAPACITY)."""
        self._begin(lambda: self.engine.add(order.spec))

    def remove(self, sequence_id: int) -> None:
        """Ends a sequence and frees its KV slots."""
        self._post(lambda: self.engine.remove(sequence_id), bounded=False)

    def add_score(self, spec: ScoreSpec) -> None:
        """Scores a text. Raises ServiceError (AT_CAPACITY)."""
        self._begin(lambda: self.engine.add_score(spec))

    def remove_score(self, score_id: int) -> None:
        """Ends the scoring of a text and frees its KV slots."""
        self._post(lambda: self.engine.remove_score(score_id), bounded=False)

    def add_drafter(self, source: str, drafter: Drafter) -> None:
        """Adds a drafter that drafts in the engine's thread."""
        self._post(lambda: self.engine.add_drafter(source, drafter), bounded=False)

    def attach(self, sequence_id: int, source: str, *, hidden_states: bool = False, kind: str = "") -> None:
        """Accepts proposals of a drafter for a sequence. hidden_states, kind: as for VerificationEngine.attach."""
        self._post(
            lambda: self.engine.attach(sequence_id, source, hidden_states=hidden_states, kind=kind), bounded=False
        )

    async def add_features(
        self, source: str, kind: FeatureKind, dtype: str, tap: Tap | None = None, *, window: int = 0
    ) -> bool:
        """Makes features for a drafter, see FeatureStreams.add. Raises TooManyKinds, ThreadEnded."""
        return await self._thread.call(lambda: self.engine.features.add(source, kind, dtype, tap, window=window))

    def sent_features(self, source: str, count: int | None = None) -> None:
        """Records that `count` bytes of features have been sent to a drafter; None for all that were handed out."""
        self._post(lambda: self.engine.features.sent(source, count), bounded=False)

    def detach(self, sequence_id: int, source: str) -> None:
        """Stops accepting proposals of a drafter for a sequence."""
        self._post(lambda: self.engine.detach(sequence_id, source), bounded=False)

    def forget(self, source: str) -> None:
        """Stops accepting proposals of a drafter and discards its statistics."""
        self._post(lambda: self.engine.forget(source), bounded=False)

    def pause(self, source: str, *, paused: bool) -> None:
        """Stops waiting for the answers of a paused drafter, or waits for them again."""
        self._post(lambda: self.engine.pause(source, paused=paused), bounded=False)

    def response_seconds(self, source: str) -> float | None:
        """Returns the smoothed time in seconds from a verdict to a drafter's first answer; None while it is unknown."""
        timing = self.engine.planner.timings.get(source)
        return None if timing is None else timing.response

    def propose(self, source: str, proposals: Sequence[SequenceProposal]) -> None:
        """Merges the proposals of one message. Raises TooManyCommands."""
        arrived_at = time.perf_counter()
        self._post(lambda: self._merge(source, proposals, arrived_at))

    def _begin(self, command: Callable[[], None]) -> None:
        try:
            self._post(command)
        except TooManyCommands as error:
            raise at_capacity(f"the engine is too far behind: {error}", _RETRY_SECONDS) from error

    def _post(self, command: Callable[[], None], *, bounded: bool = True) -> None:
        def take() -> None:
            self.engine.clock.enter("wire")
            command()

        self._thread.post(take, bounded=bounded)

    def _merge(self, source: str, proposals: Sequence[SequenceProposal], arrived_at: float) -> None:
        assert self._loop is not None
        assert self._listener is not None
        for each in proposals:
            try:
                count = self.engine.propose(each.sequence_id, source, each.proposal, arrived_at)
            except ProposalError as error:
                fault = RefusedProposal(each.sequence_id, each.epoch, source, error)
                self._loop.call_soon_threadsafe(self._listener.on_proposal_fault, fault)
                continue
            if count.stale:
                key = (each.sequence_id, source)
                self._stale[key] = self._stale.get(key, 0) + count.stale

    def _fail(self, error: BaseException) -> None:
        assert self._listener is not None  # the thread was started with it
        self._listener.on_failure(error)

    def _work(self) -> float | None:
        assert self._loop is not None
        assert self._listener is not None
        clock = self.engine.clock
        if not self.engine.busy:
            clock.enter(None)
            return self.engine.model.keep_alive()
        features = self.engine.features.hand_out()
        if features:
            self._loop.call_soon_threadsafe(self._listener.on_features, features)
        wait = self.engine.wait_seconds()
        if wait > 0:
            clock.enter("wait")
            return wait
        drafted_seconds = self.engine.drafted_seconds()
        if drafted_seconds:
            self._loop.call_soon_threadsafe(self._listener.on_step_begun, drafted_seconds)
        result = self.engine.step()
        clock.enter("wire")
        stale, self._stale = self._stale, {}
        self._loop.call_soon_threadsafe(self._listener.on_step, result, stale)
        return 0.0
