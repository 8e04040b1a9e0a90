"""Connects a caller that drafts itself to a verifier, without sockets."""

from contextlib import AbstractAsyncContextManager
from typing import Any

from draftwire_core.runtime.rpc.in_process_stream import InProcessStream, in_process_call
from tests.harness.services.in_process_verifier import InProcessVerifier
from verifier_service.verify_conversation import VerifyConversation


def call(verifier: InProcessVerifier, max_buffered: int = 16) -> AbstractAsyncContextManager[InProcessStream[Any, Any]]:
    return in_process_call(lambda stream: VerifyConversation(stream, verifier.verifier).run(), max_buffered)
