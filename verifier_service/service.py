"""Assembles and runs the verifier service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from draftwire.v1.drafter_pool_service_pb2_grpc import add_DrafterPoolServiceServicer_to_server
from draftwire.v1.model_info_pb2 import Limits
from draftwire.v1.verifier_service_pb2 import Capabilities
from draftwire.v1.verifier_service_pb2_grpc import add_VerifierServiceServicer_to_server
from draftwire_core.engine.loading.rank_processes import RANK_ERRORS, running_ranks
from draftwire_core.pool.announcing.announcement_rules import AnnouncementRules
from draftwire_core.pool.announcing.drafter_fields import is_local, read_service_address
from draftwire_core.pool.drafter.channel import drafter_channels
from draftwire_core.pool.drafter.features import FetchWeights, fetching_weights
from draftwire_core.pool.drafter.service_drafter import Connect
from draftwire_core.pool.drafter_pool import DrafterPool, PoolLimits
from draftwire_core.pool.servicer import DrafterPoolServicer
from draftwire_core.pool.standing.standings import DrafterClocks
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.observability.metrics_server import serving_metrics
from draftwire_core.runtime.observability.tracing import NO_TRACING, Tracing, running_tracing
from draftwire_core.runtime.process.lifecycle import Shutdown
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.process.tasks import BackgroundTasks
from draftwire_core.runtime.process.threads import started
from draftwire_core.runtime.rpc.channel import peer_channels
from draftwire_core.runtime.rpc.handshake import CAPABILITY_FEATURES, CAPABILITY_HIDDEN_STATES, introduce
from draftwire_core.runtime.rpc.server import ServiceServer
from draftwire_core.runtime.rpc.serving import serve
from verifier_service.admission.admission import Admission
from verifier_service.admission.expected_wait import ExpectedWait
from verifier_service.admission.peer_limits import PeerLimits
from verifier_service.engine_drafters import EngineDrafterFactory
from verifier_service.metrics.collector import VerifierCollector
from verifier_service.reading.chat import chat_format_message
from verifier_service.reading.local_address import read_local_address
from verifier_service.reading.request import RequestReader
from verifier_service.reading.text_pool import TextPool
from verifier_service.running.request_drafters import RequestDrafters
from verifier_service.running.scores import Scores
from verifier_service.servicer import VerifierServicer
from verifier_service.settings import AUTO, VerifierSettings
from verifier_service.step_loop import StepLoop
from verifier_service.target import Target, load_target, set_threads
from verifier_service.target_features import TargetFeatures
from verifier_service.verifier import ServedModel, Verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Needs of a verifier besides its settings and its target, from its process or from a test."""

    connect: Callable[[str], Connect]
    """Returns how a drafter at an address is called."""
    fetch_weights: FetchWeights | None
    """Fetches the weights of drafters that read features; None refuses these drafters."""
    tasks: BackgroundTasks
    prepare: Callable[[], None]
    """Runs once in the engine's thread."""
    on_failure: Callable[[BaseException], None]
    """Called with what ended the engine."""
    shutdown: Shutdown
    """Of the process, which may end while a drafter is being made."""
    texts: TextPool
    """Threads that read texts."""
    trusted: Collection[str] = ()
    """Addresses of drafters that are trusted."""
    announcements: AnnouncementRules | None = None
    """Rules for announcements; None accepts all."""
    uses_hub: Callable[[str], bool] = lambda _: False
    """Whether the model in a local drafter's normalized address may be a hub id."""
    tracing: Tracing = NO_TRACING
    clocks: DrafterClocks | None = None
    """Clocks of the drafter pool; None uses the machine's."""


async def run_verifier(settings: VerifierSettings, server: ServiceServer, shutdown: Shutdown) -> None:
    """Loads the target, serves on `server` until shutdown, and frees everything. Raises StartupError.

    The port is open already: health checks and retrying clients are told "not yet" until the model is ready.
    """
    try:
        trusted = [read_service_address("trusted_drafter", address) for address in settings.trusted_drafter]
    except ServiceError as error:
        raise StartupError(f"--trusted-drafter: {error.message}") from error
    announcements, uses_hub = announcement_rules(settings), hub_rule(settings)
    async with running_tracing(settings, "draftwire-verifier") as tracing:
        await _run(settings, server, shutdown, trusted, announcements, uses_hub, tracing)


async def _run(
    settings: VerifierSettings,
    server: ServiceServer,
    shutdown: Shutdown,
    trusted: Sequence[str],
    announcements: AnnouncementRules,
    uses_hub: Callable[[str], bool],
    tracing: Tracing,
) -> None:
    async with started(running_ranks(settings, shutdown.children), *RANK_ERRORS) as ranks:
        target = await asyncio.to_thread(load_target, settings, ranks)
        await _serve(settings, server, shutdown, trusted, announcements, uses_hub, tracing, target)


async def _serve(
    settings: VerifierSettings,
    server: ServiceServer,
    shutdown: Shutdown,
    trusted: Sequence[str],
    announcements: AnnouncementRules,
    uses_hub: Callable[[str], bool],
    tracing: Tracing,
    target: Target,
) -> None:
    channels = peer_channels(settings)
    async with BackgroundTasks(shutdown.fail) as tasks:
        around = Surroundings(
            connect=drafter_channels(channels, server.heap.note),
            fetch_weights=fetching_weights(channels),
            tasks=tasks,
            prepare=lambda: set_threads(settings),
            on_failure=shutdown.fail,
            shutdown=shutdown,
            texts=TextPool(server.heap.note),
            trusted=trusted,
            announcements=announcements,
            uses_hub=uses_hub,
            tracing=tracing,
        )
        verifier = assemble(settings, target, around)
        server.add(add_VerifierServiceServicer_to_server, VerifierServicer(verifier))
        server.add(add_DrafterPoolServiceServicer_to_server, DrafterPoolServicer(verifier.pool))
        try:
            for address in settings.named_drafters:
                verifier.pool.membership.add(address)
        except ServiceError as error:
            raise StartupError(f"--drafter: {error.message}") from error
        await asyncio.to_thread(verifier.reader.prepare)
        verifier.start()
        if AUTO in settings.drafter:
            from verifier_service.chosen_drafters import ChosenDrafters  # with the command line's libraries

            chosen = ChosenDrafters(settings.model, verifier, target.engine, settings.named_drafters)
            tasks.spawn(chosen.run(), name="choice of drafters")
        try:
            async with serving_metrics(settings, VerifierCollector(verifier)):
                await serve(server, shutdown, settings.shutdown_grace_seconds, drain=verifier.drain)
        finally:
            await verifier.stop()


def assemble(settings: VerifierSettings, target: Target, around: Surroundings) -> Verifier:
    """Returns a verifier of a target, made of its parts; not yet started."""
    engine, tokenizer, info = target.engine, target.tokenizer, target.info
    peers = PeerLimits(settings.max_requests_per_peer, settings.max_tokens_per_peer)
    longest = engine.model.pool.capacity - engine.limits.max_tree_nodes
    if peers.max_tokens:  # a longer request could never be admitted
        longest = min(longest, peers.max_tokens)
    limits = Limits(
        max_sequences=engine.limits.max_sequences,
        max_tree_nodes=engine.limits.max_tree_nodes,
        max_message_bytes=settings.max_message_bytes,
        max_sequence_tokens=min(info.context_length, longest),
    )
    steps = StepLoop(engine, around.prepare)
    capabilities, intake = [CAPABILITY_HIDDEN_STATES], None
    if around.fetch_weights is not None and engine.model.can_be_tapped:
        capabilities.append(CAPABILITY_FEATURES)
        intake = TargetFeatures(steps, around.fetch_weights)
    identity = introduce(info, limits, capabilities)
    wait = ExpectedWait(engine.planner.cost, engine.limits.max_step_rows)
    places = engine.limits.max_sequences + settings.max_waiting
    return Verifier(
        ServedModel(
            info,
            tokenizer,
            chat_format_message(tokenizer.chat_format),
            limits,
            identity.build,
            Capabilities(engine=settings.engine),
            engine.model.ruled_out_shapes,
        ),
        RequestReader(tokenizer, info.vocab_size, info.context_length, longest, info.eos_token_ids, pool=around.texts),
        steps,
        DrafterPool(
            steps,
            identity,
            around.connect,
            around.tasks,
            PoolLimits(engine.limits.max_tree_nodes, settings.max_drafters, settings.drafters_at_once),
            trusted=around.trusted,
            announcements=around.announcements,
            local=EngineDrafterFactory(steps, around.uses_hub, tokenizer, around.shutdown),
            clocks=around.clocks,
            intake=intake,
        ),
        Admission(wait, places, settings.max_wait_seconds, peers),
        Scores(steps, peers, allowed=settings.allow_scoring),
        RequestDrafters(steps),
        on_failure=around.on_failure,
        share_traffic=settings.share_traffic,
        tracing=around.tracing,
    )


def hub_rule(settings: VerifierSettings) -> Callable[[str], bool]:
    """Returns the rule for models by hub id: whether a local drafter at an address may have one. Those of --drafter
    always may. Raises StartupError if one of these is no address of a drafter."""
    try:
        own = {
            (read_local_address if is_local(address) else read_service_address)("drafter", address)
            for address in settings.named_drafters
        }
    except ServiceError as error:
        raise StartupError(f"--drafter: {error.message}") from error
    return lambda address: settings.allow_hub_models or address in own


def announcement_rules(settings: VerifierSettings) -> AnnouncementRules:
    """Returns the settings' rules for announcements of drafters. Raises StartupError."""
    try:
        return AnnouncementRules.of(settings, settings.announced_host)
    except ValueError as error:
        raise StartupError(f"--announced-host: {error}") from error
