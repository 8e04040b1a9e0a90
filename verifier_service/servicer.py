"""The gRPC servicer of draftwire.v1.VerifierService."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from draftwire._messages.methods import RECEIPT
from draftwire.v1 import verifier_service_pb2 as pb
from draftwire.v1.verifier_service_pb2_grpc import VerifierServiceServicer
from draftwire_core.runtime.rpc.grpc_stream import accept_call
from draftwire_core.runtime.rpc.interceptors import mark_routine
from draftwire_core.runtime.rpc.stream_meter import StreamMeter
from draftwire_core.runtime.security.caller import peer_name
from verifier_service.reading.score import read_score
from verifier_service.running.request_call import request_call
from verifier_service.verifier import Verifier
from verifier_service.verify_conversation import VerifyConversation


class VerifierServicer(VerifierServiceServicer):
    """Translates calls into the verifier's own terms; the call interceptor reports errors."""

    def __init__(self, verifier: Verifier):
        self._verifier = verifier

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        """Streams the output of one request."""
        await context.send_initial_metadata(RECEIPT)  # before any work that might end this process
        verifier, metadata = self._verifier, context.invocation_metadata() or ()
        with request_call(verifier.tracing, verifier.model.info.model_id, request, metadata) as call:
            peer = peer_name(context.peer())
            verifier.check_room(context.time_remaining())
            order = await verifier.read(request, call.request_id, peer)
            async with verifier.run(order, peer, call, context.time_remaining()) as running:
                async for event in running.events():
                    yield event

    async def Verify(self, _: Any, context: Any) -> None:
        """Runs a request whose caller drafts for it, over a stream in both directions."""
        self._verifier.request_drafters.check_callers()
        await context.send_initial_metadata(RECEIPT)
        async with accept_call(context, StreamMeter()) as stream:
            peer, metadata = peer_name(context.peer()), context.invocation_metadata() or ()
            await VerifyConversation(stream, self._verifier, peer, metadata, context.time_remaining).run()

    async def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        """Returns the tokens of a text or a conversation."""
        return await self._verifier.tokenizing.tokenize(request, peer_name(context.peer()))

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Any) -> pb.DetokenizeResponse:
        """Returns the text of tokens."""
        return await self._verifier.tokenizing.detokenize(request, peer_name(context.peer()))

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Any) -> pb.GetModelInfoResponse:
        """Returns the model, the build, the limits and the state of the engine."""
        mark_routine()  # those who watch the state ask for it up to twenty times a second
        verifier = self._verifier
        return pb.GetModelInfoResponse(
            model=verifier.model.info,
            build=verifier.model.build,
            limits=verifier.model.limits,
            engine=verifier.status(),
            started_at=verifier.model.started_at,
            chat_format=await self._chat_format(request, context),
            capabilities=verifier.model.capabilities,
        )

    async def _chat_format(self, request: pb.GetModelInfoRequest, context: Any) -> pb.ChatFormat | None:
        verifier = self._verifier
        if not verifier.model.tokenizer.has_chat_template:
            return None
        if not request.chat_template_kwargs:
            return verifier.model.chat_format
        return await verifier.reader.texts.chat_format(request.chat_template_kwargs, peer_name(context.peer()))

    async def Score(self, request: pb.ScoreRequest, context: Any) -> AsyncIterator[pb.ScoreResponse]:
        """Streams the scores of a text."""
        verifier = self._verifier
        verifier.scores.check_allowed()
        order = read_score(request, verifier.reader, verifier.model.limits.max_sequence_tokens)
        async with aclosing(verifier.scores.run(order, peer_name(context.peer()))) as responses:
            async for response in responses:
                yield response

    async def FollowTraffic(
        self, request: pb.FollowTrafficRequest, context: Any
    ) -> AsyncIterator[pb.FollowTrafficResponse]:
        """Streams the requests that the verifier serves from now on."""
        async with aclosing(self._verifier.traffic.follow(likeliest=request.likeliest)) as responses:
            async for response in responses:
                yield response
