"""The thread that runs the drafter pool, its links and its service in an event loop, next to the host engine's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace

import uvloop

from draftwire.v1.drafter_pool_service_pb2_grpc import add_DrafterPoolServiceServicer_to_server
from draftwire.v1.model_info_pb2 import Limits, ModelInfo
from draftwire_core.adapters.common.adapted_request import AdaptedRequest, RequestNews
from draftwire_core.adapters.common.batch_mirror import BatchMirror
from draftwire_core.adapters.common.metrics import AdapterCollector
from draftwire_core.adapters.common.settings import EngineAdapterSettings, HostEngine
from draftwire_core.adapters.common.step_features import FeatureTaps, StepFeatures
from draftwire_core.engine.engine.step_result import SequenceOutcome, StepResult
from draftwire_core.pool.announcing.announcement_rules import AnnouncementRules
from draftwire_core.pool.drafter.channel import drafter_channels
from draftwire_core.pool.drafter.features import fetching_weights
from draftwire_core.pool.drafter.proposal_sink import RefusedProposal
from draftwire_core.pool.drafter_pool import DrafterPool, PoolLimits
from draftwire_core.pool.servicer import DrafterPoolServicer
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.observability.metrics_server import serving_metrics
from draftwire_core.runtime.process.lifecycle import Shutdown
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.settings import variable_of
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.process.tasks import BackgroundTasks
from draftwire_core.runtime.rpc.channel import peer_channels
from draftwire_core.runtime.rpc.handshake import CAPABILITY_FEATURES, introduce
from draftwire_core.runtime.rpc.request_id import as_request_id
from draftwire_core.runtime.rpc.server import ServiceServer
from draftwire_core.runtime.rpc.serving import serve

log = get_logger(__name__)

_START_SECONDS = 30.0
_END_SECONDS = 15.0
_LOOKS = 4
"""Number of checks for idle requests within the idle time."""


class PoolThread:
    """Runs the drafter pool until `stop`. If it ends by an error, the host engine continues without speculation."""

    def __init__(
        self,
        settings: EngineAdapterSettings,
        info: ModelInfo,
        max_requests: int,
        draft_tokens: int,
        faults: Mapping[str, int],
        *,
        fixed_rows: bool = False,
        taps: FeatureTaps | None = None,
    ):
        """info: the target model. max_requests: maximum requests in a step. draft_tokens: maximum draft tokens of a
        request in a step. faults: the adapter's faults, for the metrics. fixed_rows: whether the host engine verifies
        `draft_tokens` of each request, however many are proposed. taps: the hidden states that drafters may read; None
        if the host engine gives none."""
        limits = Limits(
            max_sequences=max_requests,
            max_tree_nodes=settings.max_tree_nodes,
            max_message_bytes=settings.max_message_bytes,
            max_sequence_tokens=info.context_length,
        )
        self.mirror = BatchMirror(
            most=draft_tokens,
            max_tree_nodes=settings.max_tree_nodes,
            vocab_size=info.vocab_size,
            fixed_rows=fixed_rows,
            on_news=self._wake,
            on_fault=self._refuse,
            on_forget=self._forget,
        )
        self.address = ""
        """HOST:PORT of the pool's service; empty until it is served."""
        self.features: StepFeatures | None = None
        """Makes the features that drafters read, once the pool is served; None if there are no taps."""
        self._taps = taps
        self._settings = settings
        self._host: HostEngine = settings.HOST
        self._info = info
        self._faults = faults
        self._identity = introduce(info, limits, [] if taps is None else [CAPABILITY_FEATURES])
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: DrafterPool | None = None
        self._shutdown: Shutdown | None = None
        self._requests: dict[int, AdaptedRequest] = {}
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        # A daemon, so that it never keeps the host engine's process from exiting.
        self._thread = threading.Thread(target=self._run, name="draftwire-drafter-pool", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether the pool is running."""
        return self._thread.is_alive() and self._ready.is_set()

    @property
    def drafter_names(self) -> list[str]:
        """Names of the attached drafters. Any thread may ask."""
        return [each.name for each in self._pool.roster.members] if self._pool is not None else []

    def start(self) -> None:
        """Starts the thread, and returns once the pool is served. Raises StartupError."""
        self._thread.start()
        if not self._ready.wait(_START_SECONDS) or self._failure is not None:
            raise StartupError(
                f"the drafter pool did not start: {self._failure or f'not served in {_START_SECONDS:g} s'}"
            )

    def stop(self) -> None:
        """Ends the thread, gracefully if that does not take long."""
        loop, shutdown = self._loop, self._shutdown
        if loop is None or shutdown is None or not self._thread.is_alive():
            return
        try:
            loop.call_soon_threadsafe(shutdown.request, f"{self._host.name} ends")
        except RuntimeError:  # the loop was closed meanwhile
            return
        self._thread.join(_END_SECONDS)

    def _wake(self) -> None:
        loop = self._loop
        if loop is None or not self._thread.is_alive():
            return
        try:
            loop.call_soon_threadsafe(self._take_news)
        except RuntimeError:  # the loop was closed meanwhile, so drafting has ended
            return

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._main())
        except StartupError as error:
            self._failure = error
        except Exception as error:
            self._failure = error
            log.exception("drafter pool failed; the host engine continues without drafts")
        finally:
            self._ready.set()

    async def _main(self) -> None:
        settings = self._settings
        self._loop = asyncio.get_running_loop()
        shutdown = self._shutdown = Shutdown()
        server = ServiceServer(settings)
        channels = peer_channels(settings)
        if self._taps is not None:
            self.features = StepFeatures(self._taps, fetching_weights(channels), self._credited)
        async with BackgroundTasks(shutdown.fail) as tasks:
            pool = self._pool = DrafterPool(
                self.mirror,
                self._identity,
                drafter_channels(channels, server.heap.note),
                tasks,
                PoolLimits(settings.max_tree_nodes, settings.max_drafters, settings.drafters_per_request),
                announcements=_announcement_rules(settings),
                intake=self.features,
            )
            server.add(add_DrafterPoolServiceServicer_to_server, DrafterPoolServicer(pool))
            try:
                for address in settings.drafter:
                    pool.membership.add(address)
            except ServiceError as error:
                raise StartupError(f"{variable_of(type(settings), 'drafter')}: {error.message}") from error
            tasks.spawn(self._expire(), name="idle requests")

            async def drain(_: float) -> None:
                pool.watch.end()

            def started() -> None:
                self.address = server.address
                self._ready.set()

            collector = AdapterCollector(self._host, self._info, pool, self.mirror, self._faults)
            try:
                async with serving_metrics(settings, collector):
                    await serve(server, shutdown, settings.shutdown_grace_seconds, drain=drain, started=started)
            finally:
                pool.membership.shut_down()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._settings.request_idle_seconds / _LOOKS)
            expired = self.mirror.expire(self._settings.request_idle_seconds)
            if expired:
                log.debug("idle requests closed", requests=expired)

    def _refuse(self, fault: RefusedProposal) -> None:
        if self._pool is not None:
            self._pool.refuse(fault)

    def _forget(self, source: str) -> None:
        if self.features is not None:
            self.features.forget(source)

    def _credited(self) -> None:
        # Not at once: a stream may be about to send.
        asyncio.get_running_loop().call_soon(self._send_features)

    def _send_features(self) -> None:
        if self.features is not None and self._pool is not None:
            self._pool.send_features(self.features.take(self._pool.resting))

    def _take_news(self) -> None:
        pool = self._pool
        assert pool is not None, "the host engine steps only once the pool is served"
        for source, nodes in self.mirror.take_stale().items():
            pool.count_stale(source, nodes)
        committed: list[SequenceOutcome] = []
        over: list[AdaptedRequest] = []
        step = self.mirror.fetch()
        plain_seconds, node_tokens = step.prices
        if plain_seconds:
            pool.count_step(StepResult([], 0, plain_seconds=plain_seconds, node_tokens=node_tokens))
        for sequence_id, news in step.requests.items():
            if news.begun is not None:
                if not news.ended:
                    # Clients of the host engine may name requests as they like; drafters and logs take one short word.
                    order = replace(news.begun, request_id=as_request_id(news.begun.request_id))
                    self._requests[sequence_id] = AdaptedRequest(sequence_id, order, news.tokens)
                    pool.admit(self._requests[sequence_id])
                    self._queue_features(self._requests[sequence_id], news)
                continue
            request = self._requests.get(sequence_id)
            if request is None:
                continue
            if news.tokens:
                committed.append(_committed(request, news))
                pool.count(committed[-1])
            self._queue_features(request, news)
            if news.ended:
                del self._requests[sequence_id]
                over.append(request)
        self._send_features()  # first, so that a drafter can go on as soon as it has the verdict
        if committed:
            pool.send_verdicts(committed)
        for request in over:
            request.finished = True
            pool.release(request)

    def _queue_features(self, request: AdaptedRequest, news: RequestNews) -> None:
        if self.features is not None and self._pool is not None and news.features:
            sources = self.mirror.sources(request.sequence_id)
            length, resting, always = len(request.tokens), self._pool.resting, request.order.always_draft
            for rows in news.features:
                self.features.add(request.sequence_id, length, sources, rows, resting, always=always)


def _committed(request: AdaptedRequest, news: RequestNews) -> SequenceOutcome:
    request.tokens += news.tokens
    return SequenceOutcome(request.sequence_id, news.tokens, news.sources, len(request.tokens), drafted=news.drafted)


def _announcement_rules(settings: EngineAdapterSettings) -> AnnouncementRules:
    try:
        return AnnouncementRules.of(settings, settings.announced_host)
    except ValueError as error:
        raise StartupError(f"{variable_of(type(settings), 'announced_host')}: {error}") from error
