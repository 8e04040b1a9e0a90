"""Fetches the weights of a drafter's feature map."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

import grpc

from draftwire._calls.channel import AsyncChannels
from draftwire._messages.methods import GET_FEATURE_WEIGHTS
from draftwire.v1.features_pb2 import GetFeatureWeightsRequest
from draftwire_core.runtime.rpc.message_stream import StreamBroken

FetchWeights = Callable[[str, str, int], Awaitable[bytearray]]
"""Fetches weights: from an address, those with a SHA-256 (hex), so many bytes. Raises StreamBroken."""

_FETCH_SECONDS = 120.0
"""Time that a drafter has to send its weights."""


def fetching_weights(channels: AsyncChannels) -> FetchWeights:
    """Returns a function that fetches weights over channels."""

    async def fetch(address: str, sha256: str, size: int) -> bytearray:
        weights, digest = bytearray(), hashlib.sha256()
        async with channels.open(address) as channel:
            call = channel.unary_stream(
                GET_FEATURE_WEIGHTS.path,
                request_serializer=GET_FEATURE_WEIGHTS.request.SerializeToString,
                response_deserializer=GET_FEATURE_WEIGHTS.response.FromString,
            )(
                GetFeatureWeightsRequest(weights_sha256=sha256),
                timeout=_FETCH_SECONDS,
                metadata=channels.metadata(),
            )
            try:
                async for part in call:
                    weights += part.values
                    digest.update(part.values)
                    if len(weights) > size:
                        break
            except grpc.aio.AioRpcError as error:
                raise StreamBroken.of(error.code(), f"the weights of its features: {error.details()}") from error
            finally:
                call.cancel()
        if len(weights) != size or digest.hexdigest() != sha256:
            raise StreamBroken.of(
                grpc.StatusCode.DATA_LOSS,
                f"{address} sent other weights of its features than its handshake says: {len(weights)} bytes instead "
                f"of {size}, or another hash",
            )
        return weights

    return fetch
