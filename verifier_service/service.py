"""The verifier service, put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from draftwire.v1.drafter_pool_service_pb2_grpc import add_DrafterPoolServiceServicer_to_server
from draftwire.v1.drafter_service_pb2_grpc import DrafterServiceStub
from draftwire.v1.verifier_service_pb2_grpc import add_VerifierServiceServicer_to_server
from service_runtime.channel import open_channel
from service_runtime.errors import ServiceError
from service_runtime.grpc_stream import open_call
from service_runtime.lifecycle import Shutdown, serve
from service_runtime.server import ServiceServer
from service_runtime.startup_error import StartupError
from service_runtime.tasks import BackgroundTasks
from verifier_service.drafter_address import read_service_address
from verifier_service.drafter_conversation import DraftStream
from verifier_service.drafter_link import Connect
from verifier_service.drafter_pool_servicer import DrafterPoolServicer
from verifier_service.peer_limits import PeerLimits
from verifier_service.settings import VerifierSettings
from verifier_service.target import load_target, set_threads
from verifier_service.verifier import Verifier
from verifier_service.verifier_servicer import VerifierServicer


async def run_verifier(settings: VerifierSettings, server: ServiceServer, shutdown: Shutdown) -> None:
    """Loads the target, serves on `server` until the shutdown, and frees everything. Raises StartupError.

    The port opens when the model is ready: to probes and to clients that retry, refused connections say "not yet".
    """
    try:
        trusted = [read_service_address("trusted_drafter", address) for address in settings.trusted_drafter]
    except ServiceError as error:
        raise StartupError(f"--trusted-drafter: {error.message}") from error
    # A signal meanwhile is obeyed once the model is loaded: a thread inside torch cannot be ended safely.
    target = await asyncio.to_thread(load_target, settings)
    async with BackgroundTasks(shutdown.fail) as tasks:
        verifier = Verifier(
            target.engine,
            target.tokenizer,
            target.info,
            connect=lambda address: _connect(address, settings.max_message_bytes),
            tasks=tasks,
            prepare=lambda: set_threads(settings),
            on_failure=shutdown.fail,
            max_waiting=settings.max_waiting,
            max_message_bytes=settings.max_message_bytes,
            peer_limits=PeerLimits(settings.max_requests_per_peer, settings.max_tokens_per_peer),
            max_drafters=settings.max_drafters,
            drafters_per_request=settings.drafters_per_request,
            trusted_drafters=trusted,
            allow_scoring=settings.allow_scoring,
            share_traffic=settings.share_traffic,
        )
        server.add(add_VerifierServiceServicer_to_server, VerifierServicer(verifier))
        server.add(add_DrafterPoolServiceServicer_to_server, DrafterPoolServicer(verifier.pool))
        try:
            for address in settings.drafter:
                verifier.pool.add(address)
        except ServiceError as error:
            raise StartupError(f"--drafter: {error.message}") from error
        verifier.start()
        try:
            await serve(server, shutdown, settings.shutdown_grace_seconds, drain=verifier.drain)
        finally:
            await verifier.stop()


def _connect(address: str, max_message_bytes: int) -> Connect:
    @asynccontextmanager
    async def connect() -> AsyncIterator[DraftStream]:
        async with (
            open_channel(address, max_message_bytes) as channel,
            open_call(DrafterServiceStub(channel).Draft) as stream,
        ):
            yield stream

    return connect
