"""Weights of feature maps, as a verifier fetches them from a drafter that may send anything."""

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import repeat
from typing import Any

import grpc
import pytest

from draftwire._auth.security import Security
from draftwire._calls.channel import AsyncChannels
from draftwire._messages.methods import GET_FEATURE_WEIGHTS
from draftwire.v1.features_pb2 import GetFeatureWeightsResponse
from draftwire_core.pool.drafter.features import fetching_weights
from draftwire_core.runtime.rpc.message_stream import StreamBroken

WEIGHTS = bytes(range(256)) * 16
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()


@asynccontextmanager
async def serving(
    parts: Callable[[], Iterator[bytes]],
    serialize: Callable[[Any], bytes] = GetFeatureWeightsResponse.SerializeToString,
) -> AsyncIterator[tuple[str, list[int]]]:
    """Serves weights in these parts. Yields the address, and the sizes of the parts that were sent."""
    sent: list[int] = []

    async def weights(request: Any, context: Any) -> AsyncIterator[GetFeatureWeightsResponse]:
        for part in parts():
            sent.append(len(part))
            yield GetFeatureWeightsResponse(values=part)

    service, method = GET_FEATURE_WEIGHTS.path.strip("/").split("/")
    handler = grpc.unary_stream_rpc_method_handler(weights, GET_FEATURE_WEIGHTS.request.FromString, serialize)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", sent
    finally:
        await server.stop(None)


async def fetched(address: str) -> bytearray:
    return await fetching_weights(AsyncChannels(Security()))(address, SHA256, len(WEIGHTS))


@pytest.mark.parametrize("size", [len(WEIGHTS), 100, 7])
async def test_weights_may_come_in_small_parts(size: int) -> None:
    async with serving(lambda: (WEIGHTS[at : at + size] for at in range(0, len(WEIGHTS), size))) as (address, _):
        assert await fetched(address) == WEIGHTS


@pytest.mark.parametrize("part", [b"", b"x" * 5000], ids=["nothing", "more than announced"])
async def test_what_goes_on_without_an_end_is_cut_off(part: bytes) -> None:
    async with serving(lambda: repeat(part, 20_000)) as (address, sent):
        with pytest.raises(StreamBroken, match="sent other weights of its features than its handshake says"):
            await fetched(address)
        assert len(sent) < 20_000


async def test_bytes_that_are_no_message_are_no_weights() -> None:
    """Any other error would end the verifier."""
    async with serving(lambda: repeat(b"", 3), lambda _: b"\xff\xff") as (address, _):
        with pytest.raises(StreamBroken, match="sent other weights of its features than its handshake says"):
            await fetched(address)
