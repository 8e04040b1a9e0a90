"""DrafterService over gRPC."""

import asyncio
from typing import TYPE_CHECKING, Any

from drafter_service.draft_conversation import DraftConversation
from drafter_service.draft_loop import DraftLoop
from draftwire.v1 import drafter_service_pb2, drafter_service_pb2_grpc, model_info_pb2
from service_runtime.errors import shutting_down
from service_runtime.grpc_stream import accept_call
from service_runtime.message_stream import MessageStream

if TYPE_CHECKING:
    import grpc

    _Context = grpc.aio.ServicerContext[Any, Any]


class DrafterServicer(drafter_service_pb2_grpc.DrafterServiceServicer):
    """Takes calls; each Draft stream is a DraftConversation."""

    def __init__(self, drafting: DraftLoop, hello: model_info_pb2.PeerInfo) -> None:
        self._drafting = drafting
        self._hello = hello
        self._conversations: set[DraftConversation] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._ending = False

    async def Draft(self, _: Any, context: "_Context") -> None:
        """Drafts for one verifier."""
        async with accept_call(context) as stream:
            await self.converse(stream)

    async def GetModelInfo(
        self, request: drafter_service_pb2.DrafterServiceGetModelInfoRequest, context: "_Context"
    ) -> drafter_service_pb2.DrafterServiceGetModelInfoResponse:
        """Tells what this drafter is and serves."""
        return drafter_service_pb2.DrafterServiceGetModelInfoResponse(info=self._hello)

    async def converse(self, stream: MessageStream[Any, Any]) -> None:
        """Draft over any transport. Raises ServiceError, alone or in an ExceptionGroup, and StreamBroken."""
        if self._ending:
            raise shutting_down()
        conversation = DraftConversation(stream, self._drafting, self._hello)
        self._conversations.add(conversation)
        self._idle.clear()
        try:
            await conversation.run()
        finally:
            self._conversations.discard(conversation)
            if not self._conversations:
                self._idle.set()

    async def end_conversations(self) -> None:
        """Ends all streams cleanly, and new ones at once; returns when the last has ended."""
        self._ending = True
        for conversation in self._conversations:
            conversation.end()
        await self._idle.wait()
