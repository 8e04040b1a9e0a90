"""The port of a drafter service that sends and receives raw bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import grpc


class RawDrafter:
    """A server of Draft at `address` while it is entered; messages are bytes in both directions."""

    def __init__(
        self,
        draft: Callable[[Any, Any], Awaitable[None]],
        weights: Callable[[bytes, Any], AsyncIterator[bytes]] | None = None,
    ) -> None:
        """draft: the handler of Draft, called with the requests and the context of each call. weights: the handler of
        GetFeatureWeights; None for a drafter without features."""
        self._server = grpc.aio.server()
        handlers = {"Draft": grpc.stream_stream_rpc_method_handler(draft)}
        if weights is not None:
            handlers["GetFeatureWeights"] = grpc.unary_stream_rpc_method_handler(weights)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("draftwire.v1.DrafterService", handlers),)
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(None)
