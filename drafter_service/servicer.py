"""DrafterService over gRPC."""

from typing import TYPE_CHECKING, Any

from drafter_service.models.model_changes import ModelChanges
from draftwire.v1 import drafter_service_pb2, drafter_service_pb2_grpc
from service_runtime.errors import at_capacity, shutting_down
from service_runtime.rpc.grpc_stream import accept_call
from service_runtime.rpc.message_stream import MessageStream
from service_runtime.security.caller import current_caller, peer_name
from service_runtime.security.roles import Role

if TYPE_CHECKING:
    import grpc

    _Context = grpc.aio.ServicerContext[Any, Any]

_RETRY_SECONDS = 5.0
"""When a verifier may try again where too many had a stream: streams last."""


class DrafterServicer(drafter_service_pb2_grpc.DrafterServiceServicer):
    """Takes calls; each Draft stream gets a session with the model that is served when it begins."""

    def __init__(self, changes: ModelChanges, max_streams: int) -> None:
        """`max_streams`: Draft streams that may be open at once."""
        self._changes = changes
        self._max_streams = max_streams
        self._ending = False

    async def Draft(self, _: Any, context: "_Context") -> None:
        """Drafts for one verifier."""
        async with accept_call(context) as stream:
            await self.converse(stream, peer_name(context.peer()))

    async def LoadModel(
        self, request: drafter_service_pb2.LoadModelRequest, context: "_Context"
    ) -> drafter_service_pb2.LoadModelResponse:
        """Begins to load another model."""
        return drafter_service_pb2.LoadModelResponse(load=self._changes.load(request.model, request.request_id))

    async def GetModelInfo(
        self, request: drafter_service_pb2.DrafterServiceGetModelInfoRequest, context: "_Context"
    ) -> drafter_service_pb2.DrafterServiceGetModelInfoResponse:
        """Tells what this drafter is, serves and holds."""
        status = await self._changes.status()
        caller = current_caller()
        if status is not None and caller is not None and Role.ADMIN not in caller.roles:
            own = [each for each in status.verifiers if each.name == caller.name]
            del status.verifiers[:]
            status.verifiers.extend(own)
        return drafter_service_pb2.DrafterServiceGetModelInfoResponse(
            status=status,
            info=self._changes.serving.hello,
            last_load=self._changes.last_load,
        )

    async def converse(self, stream: MessageStream[Any, Any], verifier: str = "") -> None:
        """Draft over any transport. verifier: whose weight and share it is, by a name that it did not choose itself.

        Raises ServiceError, alone or in an ExceptionGroup, and StreamBroken."""
        if self._ending:
            raise shutting_down()
        if self._changes.streams >= self._max_streams:
            raise at_capacity(f"all {self._max_streams} Draft streams are taken", _RETRY_SECONDS)
        await self._changes.serving.converse(stream, verifier)

    async def end_sessions(self) -> None:
        """Ends all streams cleanly, and new ones at once; returns when the last has ended."""
        self._ending = True
        await self._changes.end_sessions()
