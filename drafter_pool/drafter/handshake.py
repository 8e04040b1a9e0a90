"""The verifier's side of the handshake with a drafter."""

from __future__ import annotations

import asyncio

import grpc

from drafter_pool.drafter import draft_messages
from drafter_pool.drafter.conversation import DraftStream
from draftwire.v1.drafter_service_pb2 import DraftRequest
from draftwire.v1.model_info_pb2 import PeerInfo
from service_runtime.rpc.handshake import check_peer, unprintable_field
from service_runtime.rpc.message_stream import StreamBroken

_HANDSHAKE_SECONDS = 5.0
_MAX_HELLO_BYTES = 65536


async def shake_hands(stream: DraftStream, identity: PeerInfo, address: str) -> PeerInfo:
    """Say who this side is, and return who the drafter at an address says it is.

    Raises StreamBroken if it says nothing in time, and ServiceError if it says something else, or does not fit.
    """
    try:
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            await stream.write(DraftRequest(hello=identity))
            first = await stream.read()
    except TimeoutError as error:
        raise StreamBroken.of(grpc.StatusCode.UNAVAILABLE, f"no handshake within {_HANDSHAKE_SECONDS} s") from error
    if first is None:
        raise StreamBroken.of(grpc.StatusCode.UNAVAILABLE, f"{address} ended the stream before its handshake")
    if first.WhichOneof("message") != "hello":
        raise draft_messages.handshake_fault(f"{address} did not begin with its handshake")
    if first.hello.ByteSize() > _MAX_HELLO_BYTES:
        raise draft_messages.handshake_fault(f"{address} sent a handshake of {first.hello.ByteSize()} bytes")
    unprintable = unprintable_field(first.hello)
    if unprintable is not None:
        raise draft_messages.handshake_fault(f"{address} sent a handshake whose {unprintable} is not printable")
    check_peer(identity, first.hello)
    return first.hello
