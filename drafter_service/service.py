"""Assembles and runs the drafter service."""

import os
from functools import partial

from drafter_service.metrics import DrafterCollector
from drafter_service.models.loading import load_drafter
from drafter_service.models.model_changes import ModelChanges
from drafter_service.servicer import DrafterServicer
from drafter_service.settings import DrafterSettings
from drafter_service.verifiers.announcement import Announcements
from draftwire._calls.channel import AsyncChannels
from draftwire.v1 import drafter_service_pb2_grpc
from draftwire_core.engine.loading.rank_processes import RANK_ERRORS, running_ranks
from draftwire_core.runtime.observability.metrics_server import serving_metrics
from draftwire_core.runtime.observability.tracing import running_tracing
from draftwire_core.runtime.process.lifecycle import Shutdown
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.process.tasks import BackgroundTasks
from draftwire_core.runtime.process.threads import started
from draftwire_core.runtime.rpc.channel import peer_channels
from draftwire_core.runtime.rpc.server import ServiceServer
from draftwire_core.runtime.rpc.serving import serve

log = get_logger(__name__)

_FORMER_VARIABLE = "DRAFTWIRE_VERIFIER"
"""The variable that formerly made drafters announce themselves; it now has another meaning."""


async def run_drafter(settings: DrafterSettings, server: ServiceServer, shutdown: Shutdown) -> None:
    """Loads the model, serves on `server` until the shutdown, and frees everything. Raises StartupError.

    The port is open already: until the model is ready, probes are told "not yet", and so are verifiers, which retry.
    """
    channels = peer_channels(settings)
    for verifier in settings.verifier:
        try:
            channels.check(verifier)
        except ValueError as error:
            raise StartupError(f"--verifier: {error}") from error
    async with (
        running_tracing(settings, "draftwire-drafter") as tracing,
        started(running_ranks(settings, shutdown.children), *RANK_ERRORS) as ranks,
        ModelChanges(settings, shutdown, partial(load_drafter, ranks=ranks), tracing).running() as changes,
    ):
        servicer = DrafterServicer(changes, settings.max_streams)
        server.add(drafter_service_pb2_grpc.add_DrafterServiceServicer_to_server, servicer)
        try:
            async with serving_metrics(settings, DrafterCollector(changes)):
                await _serve(settings, server, servicer, channels, shutdown)
        finally:
            await channels.close()


async def _serve(
    settings: DrafterSettings,
    server: ServiceServer,
    servicer: DrafterServicer,
    channels: AsyncChannels,
    shutdown: Shutdown,
) -> None:
    """Serves, and announces the drafter to the configured verifiers."""
    if not settings.verifier and _FORMER_VARIABLE in os.environ:
        log.warning(
            "variable ignored",
            variable=_FORMER_VARIABLE,
            did_you_mean="DRAFTWIRE_ANNOUNCE_TO",
            because="it is the command line's; a drafter is announced to DRAFTWIRE_ANNOUNCE_TO",
        )
    async with BackgroundTasks(shutdown.fail) as tasks:
        announcements = Announcements(channels, settings.verifier, settings.name, tasks)

        async def drain(_: float) -> None:
            await announcements.end()
            await servicer.end_sessions()

        def announce() -> None:
            if settings.verifier:
                log.info(
                    "announcements started", verifiers=settings.verifier, because=f"of {settings.place('verifier')}"
                )
            announcements.begin(settings.advertise or server.address)

        await serve(server, shutdown, settings.shutdown_grace_seconds, drain, started=announce)
