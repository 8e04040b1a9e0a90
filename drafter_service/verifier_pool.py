"""The pool of a verifier, as a drafter that announces itself calls it."""

from typing import Any

from draftwire._calls.channel import AsyncChannels
from draftwire.v1.drafter_pool_service_pb2 import RegisterDrafterRequest
from draftwire.v1.drafter_pool_service_pb2_grpc import DrafterPoolServiceStub


class VerifierPool:
    """Like the contract's stub, with this drafter's token; each call goes over the channel of the moment, which is
    another one after a certificate has changed."""

    def __init__(self, channels: AsyncChannels, address: str) -> None:
        """`address`: HOST:PORT of the verifier."""
        self._channels = channels
        self._address = address

    def RegisterDrafter(self, request: RegisterDrafterRequest, timeout: float) -> Any:
        """Begins the call; awaiting it gives the response or raises grpc.aio.AioRpcError. `timeout` in seconds."""
        stub: Any = DrafterPoolServiceStub(self._channels.get(self._address))
        return stub.RegisterDrafter(request, timeout=timeout, metadata=self._channels.metadata())
