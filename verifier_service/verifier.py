"""The verifier, independent of transport: its requests, the engine that runs them, and the drafters that help."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime

from draftwire.v1.model_info_pb2 import Limits, ModelInfo
from draftwire.v1.verifier_service_pb2 import EngineStatus, GenerateRequest
from draftwire_core.engine.drafters.grammar import GrammarDrafter
from draftwire_core.engine.drafters.lookup.prediction import prediction_drafter
from draftwire_core.engine.engine.step_result import SequenceFeatures, SequenceOutcome, StepResult
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.model.ranks.rank_group import RankLostError
from draftwire_core.engine.planning.acceptance_model import AcceptanceModel
from draftwire_core.engine.sampling.log_probs import LogProbs
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.engine.tree.proposal import ProposalError
from draftwire_core.pool.announcing.announcement_rules import AnnouncementRules
from draftwire_core.pool.drafter.features import FetchWeights
from draftwire_core.pool.drafter.proposal_sink import RefusedProposal
from draftwire_core.pool.drafter.service_drafter import Connect
from draftwire_core.pool.drafter.source import CALLER, GRAMMAR, PREDICTION, request_source
from draftwire_core.pool.drafter_pool import DrafterPool, PoolLimits
from draftwire_core.pool.standing.standings import DrafterClocks
from draftwire_core.runtime.errors import internal, shutting_down
from draftwire_core.runtime.observability.span import NO_SPAN
from draftwire_core.runtime.observability.tracing import NO_TRACING, Tracing
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.tasks import BackgroundTasks
from draftwire_core.runtime.rpc.handshake import CAPABILITY_FEATURES, CAPABILITY_HIDDEN_STATES, introduce
from verifier_service.admission.admission import Admission
from verifier_service.admission.expected_wait import ExpectedWait
from verifier_service.admission.flooders import Flooders
from verifier_service.admission.peer_limits import PeerLimits
from verifier_service.counting.acceptance_counts import AcceptanceCounts
from verifier_service.counting.engine_status import engine_status
from verifier_service.counting.request_counts import RequestCounts
from verifier_service.counting.step_counts import StepCounts
from verifier_service.engine_drafters import EngineDrafterFactory
from verifier_service.reading.chat import chat_format_message
from verifier_service.reading.request import GenerateOrder, RequestReader
from verifier_service.reading.text_pool import TextPool
from verifier_service.reading.tokenizing import Tokenizing
from verifier_service.running.caller_drafting import CallerDrafting
from verifier_service.running.request_call import RequestCall
from verifier_service.running.running_request import RunningRequest
from verifier_service.running.scores import Scores
from verifier_service.running.traffic import Traffic
from verifier_service.step_loop import StepLoop
from verifier_service.target_features import TargetFeatures

log = get_logger(__name__)


class Verifier:
    """Runs requests on the engine, in one event loop next to the engine's thread."""

    def __init__(
        self,
        engine: VerificationEngine,
        tokenizer: Tokenizer,
        info: ModelInfo,
        *,
        connect: Callable[[str], Connect],
        tasks: BackgroundTasks,
        prepare: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        max_waiting: int,
        max_message_bytes: int,
        max_wait_seconds: float = 0.0,
        peer_limits: PeerLimits | None = None,
        texts: TextPool | None = None,
        max_drafters: int = 64,
        drafters_per_request: int = 1,
        trusted_drafters: Collection[str] = (),
        announcements: AnnouncementRules | None = None,
        allow_scoring: bool = False,
        share_traffic: bool = False,
        uses_hub: Callable[[str], bool] = lambda _: False,
        tracing: Tracing = NO_TRACING,
        drafter_clocks: DrafterClocks | None = None,
        fetch_weights: FetchWeights | None = None,
    ):
        """uses_hub: whether the model in a local drafter's normalized address may be a hub id. drafter_clocks: clocks
        of the drafter pool; None uses the machine's. fetch_weights: fetches the weights of drafters that read
        features; None refuses these drafters."""
        self.tokenizer = tokenizer
        self.chat_format = chat_format_message(tokenizer.chat_format)
        self.info = info
        self.started_at = datetime.now(UTC)
        self.tracing = tracing
        limits = engine.limits
        pool = engine.model.pool
        longest = pool.capacity - limits.max_tree_nodes
        self._peer_limits = peer_limits or PeerLimits()
        if self._peer_limits.max_tokens:  # a longer request could never be admitted
            longest = min(longest, self._peer_limits.max_tokens)
        self.limits = Limits(
            max_sequences=limits.max_sequences,
            max_tree_nodes=limits.max_tree_nodes,
            max_message_bytes=max_message_bytes,
            max_sequence_tokens=min(info.context_length, longest),
        )
        self._texts = texts or TextPool()
        self.reader = RequestReader(
            tokenizer, info.vocab_size, info.context_length, longest, info.eos_token_ids, pool=self._texts
        )
        self.tokenizing = Tokenizing(tokenizer, self.reader, self._peer_limits.max_requests)
        self._engine = engine
        self._steps = StepLoop(
            engine,
            prepare=prepare,
            on_step=self._on_step,
            on_features=self._on_features,
            on_proposal_fault=self._on_proposal_fault,
            on_failure=self._on_engine_failure,
        )
        self.scores = Scores(self._steps, self._peer_limits, allowed=allow_scoring)
        self.traffic = Traffic(shared=share_traffic)
        self._on_failure = on_failure
        self._wait = ExpectedWait(engine.planner.cost, limits.max_step_rows)
        self._admission = Admission(self._wait, limits.max_sequences + max_waiting, max_wait_seconds)
        self._requests: dict[int, RunningRequest] = {}
        self._reading = 0
        """Number of requests being read."""
        self.flooders = Flooders()
        self._callers: dict[int, CallerDrafting] = {}
        """Callers that draft for their own request, by sequence id."""
        self._predictions = AcceptanceModel()
        """Acceptance statistics of the predictions of all requests."""
        self.acceptance_counts = AcceptanceCounts()
        self.request_counts = RequestCounts()
        self.step_counts = StepCounts()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._grace_over = False
        capabilities = [CAPABILITY_HIDDEN_STATES]
        intake: TargetFeatures | None = None
        if fetch_weights is not None and engine.model.can_be_tapped:
            capabilities.append(CAPABILITY_FEATURES)
            intake = TargetFeatures(self._steps, fetch_weights)
        identity = introduce(info, self.limits, capabilities)
        self.build = identity.build
        self.pool = DrafterPool(
            self._steps,
            identity,
            connect,
            tasks,
            PoolLimits(limits.max_tree_nodes, max_drafters, drafters_per_request),
            trusted=trusted_drafters,
            announcements=announcements,
            local=EngineDrafterFactory(self._steps, uses_hub),
            clocks=drafter_clocks,
            intake=intake,
        )

    def start(self) -> None:
        """Starts the engine."""
        self._steps.start()

    async def stop(self) -> None:
        """Releases the drafters and stops the engine."""
        self.pool.membership.shut_down()
        self._texts.close()
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
        with self.request_counts.refusals(), self._peer_limits.reading(peer):
            self._reading += 1
            try:
                return await self.reader.read(message, request_id, peer)
            finally:
                self._reading -= 1

    def check_room(self, remaining: float | None = None) -> None:
        """Raises ServiceError, and counts the refusal, if there is no room for a request; called first, so that a
        refused request need not be read.

        remaining: seconds until the caller's deadline; None if it has none.
        """
        with self.request_counts.refusals():
            self._admission.check(len(self._requests) + self._reading, self._places(), remaining)

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
        self._wait.add(request.sequence_id, len(request.tokens), order.max_length - len(request.tokens))
        self.acceptance_counts.begin(order.acceptance)
        self._idle.clear()
        timer: asyncio.TimerHandle | None = None
        if order.max_time is not None:
            timer = asyncio.get_running_loop().call_later(order.max_time, self._expire, request)
        try:
            self._steps.add(order.spec)
            with _told(request, call):
                self.pool.admit(request)
                self._draft_prediction(request)
                self._draft_grammar(request)
                yield request
        finally:
            if timer is not None:
                timer.cancel()
            self._end(request)

    def _admitted(
        self, order: GenerateOrder, peer: str, call: RequestCall | None, remaining: float | None
    ) -> RunningRequest:
        if self._grace_over or (self._draining and order.resumable):  # it was being read when the drain began
            raise shutting_down()
        self.pool.check(order.drafter_names, draws=order.acceptance.draws)
        self._admission.check(len(self._requests) + self._reading, self._places(), remaining)
        request = RunningRequest(
            order,
            self.tokenizer,
            model_fingerprint=self.info.fingerprint,
            numerics=self.info.numerics,
            requests=len(self._requests) + 1,
            span=call.span if call is not None else NO_SPAN,
        )
        if not request.finished:
            self._peer_limits.add(request.sequence_id, peer, order.max_length)
        return request

    @contextmanager
    def caller_drafts(
        self, request: RunningRequest, refused: Callable[[ProposalError], None]
    ) -> Iterator[CallerDrafting]:
        """Yields what a running request's own caller submits proposals to.

        `refused` is called with a proposal that contradicts itself; no later proposal is accepted.
        """
        source = request_source(CALLER, request.sequence_id)
        drafting = CallerDrafting(self._steps, request.sequence_id, source, refused)
        self._callers[request.sequence_id] = drafting
        try:
            self._steps.attach(request.sequence_id, source)
            yield drafting
        finally:
            del self._callers[request.sequence_id]
            self._steps.forget(source)

    def status(self) -> EngineStatus:
        """Returns what the engine holds, does and decides."""
        return engine_status(self._engine, self.acceptance_counts)

    def _on_step(self, result: StepResult, stale: dict[tuple[int, str], int]) -> None:
        committed: list[SequenceOutcome] = []
        ended: list[RunningRequest] = []
        for (sequence_id, source), nodes in stale.items():
            self.pool.count_stale(source, nodes)
            if sequence_id in self._requests:
                self._requests[sequence_id].count_stale(nodes)
        now = time.perf_counter()
        self.step_counts.count(result, self._engine.planner.cost)
        self.pool.count_step(result)
        self._wait.step(sum(len(outcome.tokens) for outcome in result.outcomes), self._places())
        self.scores.take(result.scores)
        for sequence_id, told in result.prompts.items():
            if sequence_id in self._requests:
                self._tell_prompt(self._requests[sequence_id], told)
        for outcome in result.outcomes:
            request = self._requests.get(outcome.sequence_id)
            if request is None:
                continue
            self._wait.begin(outcome.sequence_id, outcome.cached_tokens)
            acceptance = request.order.acceptance
            self.pool.count(outcome, lossless=acceptance.lossless)
            length = len(request.tokens)
            request.take(outcome)
            kept = len(request.tokens) - length
            self.acceptance_counts.count(acceptance, outcome, kept)
            if kept:
                self._wait.took(outcome.sequence_id, kept)
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
        if self._callers:
            going_on = {outcome.sequence_id: outcome for outcome in committed}
            for sequence_id, drafting in self._callers.items():
                drafting.stepped(result, going_on.get(sequence_id))
        # Last, because drafters give the places of these requests to others, which open with the tokens of this step.
        for request in ended:
            self._end(request)

    def _places(self) -> int:
        """Returns how many requests run at once: the maximum, or the number running if others wait for KV slots."""
        return self._engine.places

    def _on_features(self, features: list[SequenceFeatures]) -> None:
        self.pool.send_features(features)

    def _on_proposal_fault(self, fault: RefusedProposal) -> None:
        drafting = self._callers.get(fault.sequence_id)
        if drafting is not None and drafting.source == fault.source:
            drafting.refused(fault.error)
        else:
            self.pool.refuse(fault)

    def _on_engine_failure(self, error: BaseException) -> None:
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

    def _draft_prediction(self, request: RunningRequest) -> None:
        order = request.order
        if order.speculate and order.prediction:
            source = request_source(PREDICTION, request.sequence_id)
            drafter = prediction_drafter(order.prediction, order.prompt_length, self._predictions)
            self._steps.add_drafter(source, drafter)
            self._steps.attach(request.sequence_id, source, kind=PREDICTION)

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
        if self.traffic.followed and not request.failed:
            self.traffic.tell(request.served(self.pool.roster.drafting_for(request.sequence_id)))

    def _draft_grammar(self, request: RunningRequest) -> None:
        order = request.order
        if order.spec.form is not None and order.jump_ahead:
            source = request_source(GRAMMAR, request.sequence_id)
            self._steps.add_drafter(source, GrammarDrafter(order.spec.form))
            self._steps.attach(request.sequence_id, source, kind=GRAMMAR)

    def _end(self, request: RunningRequest) -> None:
        if self._requests.pop(request.sequence_id, None) is not None:
            self.request_counts.end(request, time.perf_counter())
            self._peer_limits.remove(request.sequence_id)
            self._wait.end(request.sequence_id, len(request.tokens) - request.order.prompt_length)
            self._steps.remove(request.sequence_id)
            if request.order.prediction:
                self._steps.forget(request_source(PREDICTION, request.sequence_id))
            if request.order.jump_ahead:
                self._steps.forget(request_source(GRAMMAR, request.sequence_id))
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
