"""A text as the target's tokenizer takes it apart."""

from __future__ import annotations

from dataclasses import dataclass

from draftwire._messages.requests import Conversation, Messages, message_list
from draftwire.errors import invalid_field
from draftwire.v1 import verifier_service_pb2 as pb


@dataclass(frozen=True, slots=True)
class Tokenization:
    """The tokens of a text."""

    token_ids: list[int]
    """The tokens."""
    text_offsets: list[int]
    """Where in the text, in characters, each token begins; of a conversation, in what the chat template makes of it."""
    token_texts: list[str]
    """Text of each token on its own; a part of a character shows as U+FFFD, a special token as its name."""


def tokenize_request(text: str | None, messages: Messages | None, add_special_tokens: bool) -> pb.TokenizeRequest:
    """Returns the request for a text or a conversation.

    Raises:
        InvalidFieldError: both of them or neither, or a message without role and content.
    """
    if (text is None) == (messages is None):
        raise invalid_field("text", "expected a text or messages, one of the two")
    return pb.TokenizeRequest(
        text=text or "",
        add_special_tokens=add_special_tokens,
        messages=None if messages is None else message_list(Conversation(messages)),
    )


def read_tokenization(message: pb.TokenizeResponse) -> Tokenization:
    """Returns a ``Tokenization`` from its message."""
    return Tokenization(list(message.token_ids), list(message.text_offsets), list(message.token_texts))
