"""Tokenization of a text by the target's tokenizer."""

from __future__ import annotations

from dataclasses import dataclass

from draftwire._messages.conversation import Conversation, conversation_message
from draftwire.errors import invalid_field
from draftwire.v1 import verifier_service_pb2 as pb


@dataclass(frozen=True, slots=True)
class Tokenization:
    """The tokens of a text."""

    token_ids: list[int]
    """The tokens."""
    text_offsets: list[int]
    """Offset of each token in the text, in characters. For a conversation the text is the rendered chat template."""
    token_texts: list[str]
    """Text of each token on its own; part of a character shows as U+FFFD, a special token as its name."""


def tokenize_request(
    text: str | None, conversation: Conversation | None, add_special_tokens: bool
) -> pb.TokenizeRequest:
    """Returns the request for a text or a conversation.

    Raises:
        InvalidFieldError: both of them or neither were given, or a message lacks role or content.
    """
    if (text is None) == (conversation is None):
        raise invalid_field("text", "expected either a text or messages")
    return pb.TokenizeRequest(
        text=text or "",
        add_special_tokens=add_special_tokens,
        messages=None if conversation is None else conversation_message(conversation),
    )


def read_tokenization(message: pb.TokenizeResponse) -> Tokenization:
    """Returns a ``Tokenization`` from its message."""
    return Tokenization(list(message.token_ids), list(message.text_offsets), list(message.token_texts))
