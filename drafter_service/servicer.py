"""draftwire.v1.DrafterService over gRPC."""

from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from drafter_service.models.model_changes import ModelChanges
from draftwire.v1 import drafter_service_pb2, drafter_service_pb2_grpc, features_pb2
from draftwire_core.runtime.errors import ServiceError, at_capacity, invalid_field, shutting_down
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.rpc.grpc_stream import accept_call
from draftwire_core.runtime.rpc.handshake import incompatible
from draftwire_core.runtime.rpc.message_stream import MessageStream
from draftwire_core.runtime.security.caller import current_caller, peer_name
from draftwire_core.runtime.security.roles import Role

if TYPE_CHECKING:
    import grpc

    _Context = grpc.aio.ServicerContext[Any, Any]

log = get_logger(__name__)

_PART_BYTES = 1 << 20
_MOST_REFUSED = 64
"""Most verifiers whose refusals are remembered."""
_RETRY_SECONDS = 5.0
"""Retry delay for a verifier when too many streams are open: streams last long."""


class DrafterServicer(drafter_service_pb2_grpc.DrafterServiceServicer):
    """Serves the DrafterService RPCs. A Draft stream keeps the model that is served when it begins."""

    def __init__(self, changes: ModelChanges, max_streams: int) -> None:
        """max_streams: maximum number of open Draft streams."""
        self._changes = changes
        self._max_streams = max_streams
        self._ending = False
        self._refused: OrderedDict[str, str] = OrderedDict()
        """Why verifiers were last refused, by their names."""

    async def Draft(self, _: Any, context: "_Context") -> None:
        """Drafts for one verifier."""
        async with accept_call(context) as stream:
            await self.converse(stream, peer_name(context.peer()))

    async def LoadModel(
        self, request: drafter_service_pb2.LoadModelRequest, context: "_Context"
    ) -> drafter_service_pb2.LoadModelResponse:
        """Starts loading another model; with `wait`, returns when that has ended."""
        load = await self._changes.load(request.model, request.request_id, wait=request.wait)
        return drafter_service_pb2.LoadModelResponse(load=load)

    async def GetModelInfo(
        self, request: drafter_service_pb2.DrafterServiceGetModelInfoRequest, context: "_Context"
    ) -> drafter_service_pb2.DrafterServiceGetModelInfoResponse:
        """Returns the drafter's hello, status and last model load."""
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

    async def GetFeatureWeights(
        self, request: features_pb2.GetFeatureWeightsRequest, _: "_Context"
    ) -> AsyncIterator[features_pb2.GetFeatureWeightsResponse]:
        """Sends the weights of the map that verifiers apply to their target's states."""
        serving = self._changes.serving
        if serving.mapping is None or request.weights_sha256 != serving.hello.features.weights_sha256:
            raise invalid_field("weights_sha256", "must be that of the features that the served model reads")
        for part in serving.mapping.weight_bytes(_PART_BYTES):
            yield features_pb2.GetFeatureWeightsResponse(values=part)

    async def converse(self, stream: MessageStream[Any, Any], verifier: str = "") -> None:
        """Serves a Draft stream over any transport.

        verifier: the verifier's name for its weight and account, which it must not have chosen itself. Raises
        ServiceError, alone or in an ExceptionGroup, and StreamBroken.
        """
        if self._ending:
            raise shutting_down()
        if self._changes.streams >= self._max_streams:
            raise at_capacity(f"all {self._max_streams} Draft streams are in use (--max-streams)", _RETRY_SECONDS)
        try:
            await self._changes.serving.converse(stream, verifier)
        except ServiceError as error:
            if incompatible(error.code, error.reason_name):
                self._tell_refused(verifier, error)
            raise

    def _tell_refused(self, verifier: str, error: ServiceError) -> None:
        """Logs why a verifier was refused: once, though it keeps trying."""
        if self._refused.get(verifier) == error.message:
            return
        self._refused[verifier] = error.message
        self._refused.move_to_end(verifier)
        if len(self._refused) > _MOST_REFUSED:
            self._refused.popitem(last=False)
        log.warning("handshake refused", verifier=verifier, reason=error.message)

    async def end_sessions(self) -> None:
        """Ends all streams cleanly and refuses new ones; returns when the last has ended."""
        self._ending = True
        await self._changes.end_sessions()
