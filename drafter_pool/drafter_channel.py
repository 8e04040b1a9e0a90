"""How drafters are reached over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from drafter_pool.drafter_conversation import DraftStream
from drafter_pool.drafter_link import Connect
from draftwire.channel import AsyncChannels
from draftwire.v1.drafter_service_pb2_grpc import DrafterServiceStub
from service_runtime.errors import invalid_field
from service_runtime.grpc_stream import open_call


def drafter_channels(
    channels: AsyncChannels, on_message: Callable[[int], None] | None = None
) -> Callable[[str], Connect]:
    """Of a drafter's address, how to reach it: over a channel of its own each time. What this gives raises
    ServiceError when that is not allowed.

    on_message: is given the bytes of each message that a drafter sends.
    """

    def reach(address: str) -> Connect:
        try:
            channels.check(address)
        except ValueError as error:
            raise invalid_field("address", str(error)) from error

        @asynccontextmanager
        async def connect() -> AsyncIterator[DraftStream]:
            async with (
                channels.open(address) as channel,
                open_call(
                    DrafterServiceStub(channel).Draft, metadata=channels.metadata(), on_message=on_message
                ) as stream,
            ):
                yield stream

        return connect

    return reach
