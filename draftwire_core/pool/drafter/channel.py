"""gRPC channels to drafters, and readable errors for unreachable drafters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc

from draftwire._calls.channel import AsyncChannels
from draftwire._calls.error_messages import KINDS, connection_words, wrong_service
from draftwire._messages.health import PROBE_SECONDS, check_request, health_check
from draftwire._messages.methods import DRAFT
from draftwire_core.pool.drafter.drafter_stream import DraftCall
from draftwire_core.pool.drafter.service_drafter import Connect
from draftwire_core.runtime.errors import invalid_field
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.rpc.grpc_stream import open_call
from draftwire_core.runtime.rpc.handshake import shown
from draftwire_core.runtime.rpc.message_stream import StreamBroken
from draftwire_core.runtime.rpc.stream_meter import StreamMeter

log = get_logger(__name__)

_REFUSED_WHILE_WRITING = "Internal error from Core"
"""The message of grpc.aio, with INTERNAL, if a server refuses a call while a message is being written to it."""


def drafter_channels(
    channels: AsyncChannels, on_message: Callable[[int], None] = lambda _: None
) -> Callable[[str], Connect]:
    """Returns a function that opens Draft calls to an address, each over a channel of its own. The function raises
    ServiceError for an address that may not be called.

    on_message: called with the size in bytes of each message that a drafter sends.
    """

    def reach(address: str) -> Connect:
        try:
            channels.check(address)
        except ValueError as error:
            raise invalid_field("address", str(error)) from error

        @asynccontextmanager
        async def connect() -> AsyncIterator[DraftCall]:
            async with channels.open(address) as channel:
                meter = StreamMeter(DRAFT.response.FromString, on_message)
                draft = channel.stream_stream(
                    DRAFT.path, request_serializer=DRAFT.request.SerializeToString, response_deserializer=meter
                )
                try:
                    async with open_call(draft, metadata=channels.metadata(), meter=meter) as stream:
                        yield stream
                except StreamBroken as error:
                    raise await _explained(error, channel, channels, address) from error

        return connect

    return reach


async def _explained(
    error: StreamBroken, channel: grpc.aio.Channel, channels: AsyncChannels, address: str
) -> StreamBroken:
    """Rewrites the error that ended a stream for readers of the list of drafters."""
    if error.reason_name is not None:
        return error  # the drafter's own error
    log.debug("stream ended", address=address, reason=shown(str(error)))
    message: str | None = None
    if error.code is grpc.StatusCode.UNAVAILABLE:
        message = connection_words(error.status.message, address, encrypted=channels.encrypted)
    elif error.code is grpc.StatusCode.UNIMPLEMENTED or error.status.message == _REFUSED_WHILE_WRITING:
        there = {each: await _has(channel, channels, each) for each in KINDS}
        if error.code is grpc.StatusCode.UNIMPLEMENTED or not there[DRAFT.service]:
            message = wrong_service(DRAFT.service, address, there, error.status.message)
            return StreamBroken.of(grpc.StatusCode.UNIMPLEMENTED, message)
    return error if message is None else StreamBroken.of(error.code, message)


async def _has(channel: grpc.aio.Channel, channels: AsyncChannels, service: str) -> bool:
    """Whether a server has a service: it reports the service's health."""
    try:
        await health_check(channel)(check_request(service), timeout=PROBE_SECONDS, metadata=channels.metadata())
    except grpc.aio.AioRpcError:  # an unknown service, or a server without health checks
        return False
    return True
