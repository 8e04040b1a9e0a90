"""draftwire.v1.VerifierService over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from draftwire._messages.methods import RECEIPT
from draftwire.v1 import verifier_service_pb2 as pb
from draftwire.v1.verifier_service_pb2_grpc import VerifierServiceServicer
from service_runtime.rpc.grpc_stream import accept_call
from service_runtime.security.caller import peer_name
from verifier_service.reading.score import read_score
from verifier_service.running.request_call import request_call
from verifier_service.verifier import Verifier
from verifier_service.verify_conversation import VerifyConversation


class VerifierServicer(VerifierServiceServicer):
    """Turns calls into the verifier's own terms; errors go through the call interceptor."""

    def __init__(self, verifier: Verifier):
        self._verifier = verifier

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        """See the contract."""
        await context.send_initial_metadata(RECEIPT)  # before anything is done with what may end this process
        verifier, metadata = self._verifier, context.invocation_metadata() or ()
        with request_call(verifier.tracing, verifier.info.model_id, request, metadata) as call:
            peer = peer_name(context.peer())
            verifier.check_room(context.time_remaining())
            order = await verifier.read(request, call.request_id, peer)
            async with verifier.run(order, peer, call, context.time_remaining()) as running:
                async for event in running.events():
                    yield event

    async def Verify(self, _: Any, context: Any) -> None:
        """See the contract."""
        await context.send_initial_metadata(RECEIPT)
        async with accept_call(context) as stream:
            peer, metadata = peer_name(context.peer()), context.invocation_metadata() or ()
            await VerifyConversation(stream, self._verifier, peer, metadata, context.time_remaining()).run()

    async def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        """See the contract."""
        return await self._verifier.tokenizing.tokenize(request, peer_name(context.peer()))

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Any) -> pb.DetokenizeResponse:
        """See the contract."""
        return await self._verifier.tokenizing.detokenize(request, peer_name(context.peer()))

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Any) -> pb.GetModelInfoResponse:
        """See the contract."""
        verifier = self._verifier
        return pb.GetModelInfoResponse(
            model=verifier.info,
            build=verifier.build,
            limits=verifier.limits,
            engine=verifier.status(),
            started_at=verifier.started_at,
        )

    async def Score(self, request: pb.ScoreRequest, context: Any) -> AsyncIterator[pb.ScoreResponse]:
        """See the contract."""
        verifier = self._verifier
        verifier.scores.check_allowed()
        order = read_score(request, verifier.reader, verifier.limits.max_sequence_tokens)
        async with aclosing(verifier.scores.run(order, peer_name(context.peer()))) as responses:
            async for response in responses:
                yield response

    async def FollowTraffic(
        self, request: pb.FollowTrafficRequest, context: Any
    ) -> AsyncIterator[pb.FollowTrafficResponse]:
        """See the contract."""
        async with aclosing(self._verifier.traffic.follow()) as responses:
            async for response in responses:
                yield response
