"""The drafter service, put together."""

import asyncio

from drafter_service.announcement import Announcement
from drafter_service.loaded_heads import load_heads
from drafter_service.loaded_model import load_model
from drafter_service.model_changes import ModelChanges
from drafter_service.servicer import DrafterServicer
from drafter_service.settings import DrafterSettings
from draftwire.v1 import drafter_pool_service_pb2_grpc, drafter_service_pb2_grpc
from service_runtime.channel import open_channel
from service_runtime.lifecycle import Shutdown, serve
from service_runtime.server import ServiceServer
from service_runtime.tasks import BackgroundTasks


async def run_drafter(settings: DrafterSettings, server: ServiceServer, shutdown: Shutdown) -> None:
    """Loads the model, serves on `server` until the shutdown, and frees everything. Raises StartupError.

    The port opens when the model is ready: to probes, and to verifiers that retry with back-off, refused connections
    say "not yet", without a half-working service behind the port.
    """
    load = load_heads if settings.medusa_heads else load_model
    async with ModelChanges(settings, shutdown, load).running() as changes:
        servicer = DrafterServicer(changes, settings.max_streams)
        server.add(drafter_service_pb2_grpc.add_DrafterServiceServicer_to_server, servicer)
        await _serve(settings, server, servicer, shutdown)


async def _serve(
    settings: DrafterSettings, server: ServiceServer, servicer: DrafterServicer, shutdown: Shutdown
) -> None:
    """Serves and, if there is a verifier to announce the drafter to, does so."""
    if settings.verifier is None:
        await serve(server, shutdown, settings.shutdown_grace_seconds, lambda _: servicer.end_conversations())
        return
    async with (
        open_channel(settings.verifier, settings.max_message_bytes) as channel,
        BackgroundTasks(shutdown.fail) as tasks,
    ):
        pool = drafter_pool_service_pb2_grpc.DrafterPoolServiceStub(channel)
        announcement: Announcement | None = None
        announcing: asyncio.Task[None] | None = None

        def announce() -> None:
            nonlocal announcement, announcing
            announcement = Announcement(pool, settings.advertise or server.address, settings.name)
            announcing = tasks.spawn(announcement.run(), name="announcement")

        async def drain(_: float) -> None:
            if announcement is not None and announcing is not None:
                announcing.cancel()
                await asyncio.wait({announcing})
                await announcement.leave()
            await servicer.end_conversations()

        await serve(server, shutdown, settings.shutdown_grace_seconds, drain, started=announce)
