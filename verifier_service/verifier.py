"""The verifier, independent of transport: its requests, the engine that runs them, and the drafters that help."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from draftwire.v1.model_info_pb2 import Limits, ModelInfo
from draftwire.v1.speculation_gain_pb2 import SpeculationGain
from draftwire.v1.verifier_service_pb2 import Capabilities, ChatFormat, EngineStatus, GenerateRequest
from draftwire_core.engine.engine.step_result import SequenceFeatures, SequenceOutcome, StepResult
from draftwire_core.engine.model.ranks.rank_group import RankLostError
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.log_probs import LogProbs
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.pool.drafter.proposal_sink import RefusedProposal
from draftwire_core.pool.drafter_pool import DrafterPool
from draftwire_core.runtime.duration import duration
from draftwire_core.runtime.errors import internal, shutting_down
from draftwire_core.runtime.observability.span import NO_SPAN
from draftwire_core.runtime.observability.tracing import NO_TRACING, Tracing
from draftwire_core.runtime.process.logs import get_logger
from verifier_service.admission.admission import Admission
from verifier_service.admission.flooders import Flooders
from verifier_service.counting.acceptance_counts import AcceptanceCounts, RuleCount
from verifier_service.counting.request_counts import RequestCounts
from verifier_service.counting.step_counts import StepCounts
from verifier_service.reading.generate_order import GenerateOrder
from verifier_service.reading.request import RequestReader
from verifier_service.reading.tokenizing import Tokenizing
from verifier_service.running.request_call import RequestCall
from verifier_service.running.request_drafters import RequestDrafters
from verifier_service.running.running_request import RunningRequest
from verifier_service.running.scores import Scores
from verifier_service.running.traffic import Traffic
from verifier_service.step_loop import StepListener

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The target model as callers see it: the part of GetModelInfo that does not change while a verifier runs."""

    info: ModelInfo
    tokenizer: Tokenizer
    chat_format: ChatFormat
    limits: Limits
    build: str
    capabilities: Capabilities
    ruled_out_shapes: int = 0
    """Shapes of GPU kernels that its trial at load ruled out."""
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))


class Steps(Protocol):
    """The engine that runs the requests, as the verifier sees it from the event loop: `StepLoop` in front of the engine
    of this package, `vllm.VllmSteps` in front of vLLM."""

    @property
    def places(self) -> int:
        """How many requests run at once."""

    @property
    def cost(self) -> StepCost:
        """The cost of a step by its rows."""

    @property
    def waited(self) -> float:
        """Seconds that the engine has waited for proposals."""

    def start(self, listener: StepListener) -> None:
        """Starts the engine, whose results go to a listener."""

    async def stop(self) -> None:
        """Ends the engine."""

    def add(self, order: GenerateOrder) -> None:
        """Runs a request. Raises ServiceError (AT_CAPACITY)."""

    def remove(self, sequence_id: int) -> None:
        """Ends a request and frees its KV slots; does nothing if it has ended."""

    def status(self) -> EngineStatus:
        """Returns what the engine holds, does and decides."""


class Verifier(StepListener):
    """Runs requests on the engine, in one event loop next to the engine's thread."""

    def __init__(
        self,
        model: ServedModel,
        reader: RequestReader,
        steps: Steps,
        pool: DrafterPool,
        admission: Admission,
        scores: Scores,
        request_drafters: RequestDrafters,
        *,
        on_failure: Callable[[BaseException], None],
        share_traffic: bool = False,
        tracing: Tracing = NO_TRACING,
    ):
        """on_failure: called with what ended the engine. share_traffic: as the setting of this name. The service, or a
        test, assembles the parts; see `assemble`."""
        self.model = model
        self.reader = reader
        self.pool = pool
        self.tracing = tracing
        self.tokenizing = Tokenizing(model.tokenizer, reader, admission.peers.max_requests)
        self.scores = scores
        self.traffic = Traffic(shared=share_traffic)
        self.flooders = Flooders()
        self.acceptance_counts = AcceptanceCounts()
        self.request_counts = RequestCounts()
        self.step_counts = StepCounts()
        self.request_drafters = request_drafters
        """Drafters of single requests; those of the pool are in `pool`."""
        self._steps = steps
        self._waited = 0.0
        """Seconds that the engine had waited for proposals at the last step."""
        self._admission = admission
        self._on_failure = on_failure
        self._requests: dict[int, RunningRequest] = {}
        self._rule_counts: dict[int, RuleCount] = {}
        """Counts of the acceptance rule of each request."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._grace_over = False

    def start(self) -> None:
        """Starts the engine."""
        self._steps.start(self)

    async def stop(self) -> None:
        """Releases the drafters and stops the engine."""
        self.pool.membership.shut_down()
        self.reader.close()
        await self._steps.stop()

    async def drain(self, grace_seconds: float) -> None:
        """Waits until no request runs; cancelled when the grace time is over.

        Requests whose callers can continue at another verifier end immediately, the others at the end of the grace
        time, all with SHUTTING_DOWN. Streams of pool changes and of traffic end, and so does scoring.
        """
        self.pool.watch.end()
        self.traffic.end()
        self.scores.end(shutting_down())
        self._draining = True
        requests = len(self._requests)
        self._hand_over(lambda request: request.order.resumable)
        log.info("draining", requests=requests, handed_over=requests - len(self._requests), grace_seconds=grace_seconds)
        try:
            await self._idle.wait()
        finally:
            self._grace_over = True
            self._hand_over(lambda _: True)

    def _hand_over(self, which: Callable[[RunningRequest], bool]) -> None:
        for request in [each for each in self._requests.values() if which(each)]:
            request.fail(shutting_down())
            self._end(request)

    async def read(self, message: GenerateRequest, request_id: str = "", peer: str = "") -> GenerateOrder:
        """Reads and checks a request of a peer; a refused request is counted. Raises ServiceError.

        While it is being read, the request counts as waiting, for the verifier's limits and for the peer's.
        """
        with self.request_counts.refusals(), self._admission.reading(peer):
            return await self.reader.read(message, request_id, peer)

    def check_room(self, remaining: float | None = None) -> None:
        """Raises ServiceError, and counts the refusal, if there is no room for a request; called first, so that a
        refused request need not be read.

        remaining: seconds until the caller's deadline; None if it has none.
        """
        with self.request_counts.refusals():
            self._admission.check(len(self._requests), self._steps.places, remaining)

    @asynccontextmanager
    async def run(
        self,
        order: GenerateOrder,
        peer: str = "",
        call: RequestCall | None = None,
        remaining: float | None = None,
    ) -> AsyncIterator[RunningRequest]:
        """Runs a request of a peer; leaving the `async with` ends it and frees its KV slots. Raises ServiceError.

        call: writes its log lines and its trace. remaining: as for `check_room`.
        """
        with self.request_counts.refusals():
            request = self._admitted(order, peer, call, remaining)
        if request.finished:  # a resumed request that was already complete
            with _told(request, call):
                yield request
            return
        self._requests[request.sequence_id] = request
        self._admission.wait.add(request.sequence_id, len(request.tokens), order.max_length - len(request.tokens))
        self._rule_counts[request.sequence_id] = self.acceptance_counts.begin(order.acceptance)
        self._idle.clear()
        timer: asyncio.TimerHandle | None = None
        if order.max_time is not None:
            timer = asyncio.get_running_loop().call_later(order.max_time, self._expire, request)
        try:
            likeliest = self.traffic.likeliest_wanted and not order.private
            self._steps.add(replace(order, spec=replace(order.spec, likeliest=True)) if likeliest else order)
            with _told(request, call):
                self.pool.admit(request)
                self.request_drafters.attach(order)
                yield request
        finally:
            if timer is not None:
                timer.cancel()
            self._end(request)
            self._admission.peers.remove(request.sequence_id)

    def _admitted(
        self, order: GenerateOrder, peer: str, call: RequestCall | None, remaining: float | None
    ) -> RunningRequest:
        if self._grace_over or (self._draining and order.resumable):  # it was being read when the drain began
            raise shutting_down()
        self.pool.check(order.drafter_names, draws=order.acceptance.draws)
        self._admission.check(len(self._requests), self._steps.places, remaining)
        request = RunningRequest(
            order,
            self.model.tokenizer,
            model_fingerprint=self.model.info.fingerprint,
            numerics=self.model.info.numerics,
            requests=len(self._requests) + 1,
            span=call.span if call is not None else NO_SPAN,
            # Output that nobody reads is kept: until then a finished request counts as its peer's.
            on_read=partial(self._admission.peers.remove, order.spec.sequence_id),
        )
        if not request.finished:
            self._admission.peers.add(request.sequence_id, peer, order.max_length)
        return request

    def status(self) -> EngineStatus:
        """Returns what the engine holds, does and decides."""
        status, gain = self._steps.status(), self.step_counts.gain
        status.acceptance.extend(self.acceptance_counts.messages())
        status.gain.CopyFrom(
            SpeculationGain(
                tokens=gain.tokens,
                sequences=gain.sequences,
                time=duration(gain.seconds),
                plain_time=duration(gain.plain_seconds),
            )
        )
        return status

    def on_step_begun(self, step_seconds: float) -> None:
        """Lets the drafters gather their nodes during a step that is expected to take so long."""
        self.pool.step_begun(step_seconds)

    def on_step(self, result: StepResult, stale: dict[tuple[int, str], int]) -> None:
        """Notifies requests, drafters and counts of a step."""
        committed: list[SequenceOutcome] = []
        ended: list[RunningRequest] = []
        for (sequence_id, source), nodes in stale.items():
            self.pool.count_stale(source, nodes)
            if sequence_id in self._requests:
                self._requests[sequence_id].speculation.stale(nodes)
        now = time.perf_counter()
        self._count_step(result)
        self.pool.count_step(result)
        wait, rollouts = self._admission.wait, self.pool.rollouts.running
        wait.step(sum(len(outcome.tokens) for outcome in result.outcomes), self._steps.places)
        self.scores.take(result.scores)
        for sequence_id, told in result.prompts.items():
            if sequence_id in self._requests:
                self._tell_prompt(self._requests[sequence_id], told)
        for outcome in result.outcomes:
            request = self._requests.get(outcome.sequence_id)
            if request is None:
                continue
            if request.times.last_tokens is None:
                wait.begin(outcome.sequence_id, outcome.cached_tokens)
            if outcome.drafted or rollouts:
                self.pool.count(outcome, lossless=request.order.acceptance.lossless)
            length = len(request.tokens)
            request.take(outcome)
            kept = len(request.tokens) - length
            self._rule_counts[outcome.sequence_id].count(outcome, kept)
            if kept:
                wait.took(outcome.sequence_id, kept)
                self.request_counts.took(request, kept, now)
            if request.finished:
                ended.append(request)
                self._tell_traffic(request)
            else:
                committed.append(outcome)
        if result.features:
            self.pool.send_features(result.features)  # first, so that a drafter can go on as soon as it has the verdict
        if committed:
            self.pool.send_verdicts(committed)
        if self.request_drafters.callers:
            self.request_drafters.stepped(result, {outcome.sequence_id: outcome for outcome in committed})
        # Last, because drafters give the places of these requests to others, which open with the tokens of this step.
        for request in ended:
            self._end(request)

    def _count_step(self, result: StepResult) -> None:
        orders = [
            self._requests[each.sequence_id].order for each in result.outcomes if each.sequence_id in self._requests
        ]
        planned = any(order.speculate and not order.always_draft for order in orders)
        waited = self._steps.waited
        self.step_counts.count(result, self._steps.cost, planned=planned, waited=waited - self._waited)
        self._waited = waited

    def on_features(self, features: list[SequenceFeatures]) -> None:
        """Sends features that are known before a sequence's first step."""
        self.pool.send_features(features)

    def on_proposal_fault(self, fault: RefusedProposal) -> None:
        """Reports to its drafter a proposal that contradicts itself."""
        if not self.request_drafters.refuse(fault):
            self.pool.refuse(fault)

    def on_failure(self, error: BaseException) -> None:
        """Ends every request, then the service: without its engine the verifier can serve nobody."""
        # Losing a rank of the model is not the fault of a request, which can continue at another verifier.
        lost = isinstance(error, RankLostError)
        if lost:
            log.error("model lost", reason=str(error))
        for request in list(self._requests.values()):
            request.fail(shutting_down() if lost else internal(request.order.request_id))
            self._end(request)
        self.scores.end(internal("score"))
        self._on_failure(error)

    def _tell_prompt(self, request: RunningRequest, told: LogProbs) -> None:
        request.take_prompt(told)
        if request.failed:
            self._end(request)

    def _expire(self, request: RunningRequest) -> None:
        if not request.finished:
            request.expire()
            self._tell_traffic(request)
            self._end(request)

    def _tell_traffic(self, request: RunningRequest) -> None:
        if self.traffic.followed and not request.failed and not request.order.private:
            self.traffic.tell(request.served(self.pool.roster.drafting_for(request.sequence_id)))

    def _end(self, request: RunningRequest) -> None:
        if self._requests.pop(request.sequence_id, None) is not None:
            del self._rule_counts[request.sequence_id]
            self.request_counts.end(request, time.perf_counter())
            self._admission.wait.end(request.sequence_id, len(request.tokens) - request.order.prompt_length)
            self._steps.remove(request.sequence_id)
            self.request_drafters.forget(request.sequence_id)
            self.pool.release(request)
            if not self._requests:
                self._idle.set()


@contextmanager
def _told(request: RunningRequest, call: RequestCall | None) -> Iterator[None]:
    """Records in log and trace that a request was accepted, and how it ended."""
    if call is not None:
        call.accepted(request)
    try:
        yield
    finally:
        if call is not None:
            call.over(request)
