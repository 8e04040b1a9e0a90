"""A conversation as the text that the target's chat template makes of it."""

from __future__ import annotations

import grpc

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.verifier_service_pb2 import ChatMessages
from service_runtime.errors import FieldViolation, ServiceError, invalid_field
from speculative_engine.tokenizer import ChatTemplateError, Tokenizer


def chat_text(chat: ChatMessages, tokenizer: Tokenizer) -> str:
    """The text, special tokens included. Raises ServiceError with INVALID_ARGUMENT."""
    messages = [{"role": message.role, "content": message.content} for message in chat.messages]
    if not messages:
        raise ServiceError(
            grpc.StatusCode.INVALID_ARGUMENT,
            ErrorReason.ERROR_REASON_EMPTY_PROMPT,
            "messages.messages: is empty",
            field_violations=[FieldViolation("messages.messages", "is empty")],
        )
    try:
        return tokenizer.render_chat(messages)
    except ChatTemplateError as error:
        raise invalid_field("messages", str(error)) from error
