"""Assembles and runs the verifier service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from draftwire.v1.drafter_pool_service_pb2_grpc import add_DrafterPoolServiceServicer_to_server
from draftwire.v1.verifier_service_pb2_grpc import add_VerifierServiceServicer_to_server
from draftwire_core.engine.loading.rank_processes import RANK_ERRORS, running_ranks
from draftwire_core.pool.announcing.announcement_rules import AnnouncementRules
from draftwire_core.pool.announcing.drafter_fields import is_local, read_service_address
from draftwire_core.pool.drafter.channel import drafter_channels
from draftwire_core.pool.drafter.features import fetching_weights
from draftwire_core.pool.servicer import DrafterPoolServicer
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.observability.metrics_server import serving_metrics
from draftwire_core.runtime.observability.tracing import Tracing, running_tracing
from draftwire_core.runtime.process.lifecycle import Shutdown
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.process.tasks import BackgroundTasks
from draftwire_core.runtime.process.threads import started
from draftwire_core.runtime.rpc.channel import peer_channels
from draftwire_core.runtime.rpc.server import ServiceServer
from draftwire_core.runtime.rpc.serving import serve
from verifier_service.admission.peer_limits import PeerLimits
from verifier_service.metrics.collector import VerifierCollector
from verifier_service.reading.local_address import read_local_address
from verifier_service.reading.text_pool import TextPool
from verifier_service.servicer import VerifierServicer
from verifier_service.settings import VerifierSettings
from verifier_service.target import Target, load_target, set_threads
from verifier_service.verifier import Verifier


async def run_verifier(settings: VerifierSettings, server: ServiceServer, shutdown: Shutdown) -> None:
    """Loads the target, serves on `server` until shutdown, and frees everything. Raises StartupError.

    The port is open already: health checks and retrying clients are told "not yet" until the model is ready.
    """
    try:
        trusted = [read_service_address("trusted_drafter", address) for address in settings.trusted_drafter]
    except ServiceError as error:
        raise StartupError(f"--trusted-drafter: {error.message}") from error
    announcements = announcement_rules(settings)
    async with running_tracing(settings, "draftwire-verifier") as tracing:
        await _run(settings, server, shutdown, trusted, announcements, tracing)


async def _run(
    settings: VerifierSettings,
    server: ServiceServer,
    shutdown: Shutdown,
    trusted: Sequence[str],
    announcements: AnnouncementRules,
    tracing: Tracing,
) -> None:
    async with started(running_ranks(settings, shutdown.children), *RANK_ERRORS) as ranks:
        target = await asyncio.to_thread(load_target, settings, ranks)
        await _serve(settings, server, shutdown, trusted, announcements, tracing, target)


async def _serve(
    settings: VerifierSettings,
    server: ServiceServer,
    shutdown: Shutdown,
    trusted: Sequence[str],
    announcements: AnnouncementRules,
    tracing: Tracing,
    target: Target,
) -> None:
    channels = peer_channels(settings)
    uses_hub = hub_rule(settings)
    async with BackgroundTasks(shutdown.fail) as tasks:
        verifier = Verifier(
            target.engine,
            target.tokenizer,
            target.info,
            connect=drafter_channels(channels, server.heap.note),
            tasks=tasks,
            prepare=lambda: set_threads(settings),
            on_failure=shutdown.fail,
            max_waiting=settings.max_waiting,
            max_wait_seconds=settings.max_wait_seconds,
            max_message_bytes=settings.max_message_bytes,
            texts=TextPool(server.heap.note),
            peer_limits=PeerLimits(settings.max_requests_per_peer, settings.max_tokens_per_peer),
            max_drafters=settings.max_drafters,
            drafters_per_request=settings.drafters_per_request,
            trusted_drafters=trusted,
            announcements=announcements,
            allow_scoring=settings.allow_scoring,
            share_traffic=settings.share_traffic,
            uses_hub=uses_hub,
            tracing=tracing,
            fetch_weights=fetching_weights(channels),
        )
        server.add(add_VerifierServiceServicer_to_server, VerifierServicer(verifier))
        server.add(add_DrafterPoolServiceServicer_to_server, DrafterPoolServicer(verifier.pool))
        try:
            for address in settings.drafter:
                verifier.pool.membership.add(address)
        except ServiceError as error:
            raise StartupError(f"--drafter: {error.message}") from error
        await asyncio.to_thread(verifier.reader.prepare)
        verifier.start()
        try:
            async with serving_metrics(settings.metrics_listen, VerifierCollector(verifier)):
                await serve(server, shutdown, settings.shutdown_grace_seconds, drain=verifier.drain)
        finally:
            await verifier.stop()


def hub_rule(settings: VerifierSettings) -> Callable[[str], bool]:
    """Returns the rule for models by hub id: whether a local drafter at an address may have one. Those of --drafter
    always may. Raises StartupError."""
    try:
        own = {read_local_address("drafter", address) for address in settings.drafter if is_local(address)}
    except ServiceError as error:
        raise StartupError(f"--drafter: {error.message}") from error
    return lambda address: settings.allow_hub_models or address in own


def announcement_rules(settings: VerifierSettings) -> AnnouncementRules:
    """Returns the settings' rules for announcements of drafters. Raises StartupError."""
    try:
        return AnnouncementRules.of(settings, settings.announced_host)
    except ValueError as error:
        raise StartupError(f"--announced-host: {error}") from error
