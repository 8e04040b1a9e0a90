"""Tokenization of a text by the target's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from draftwire._messages import option_types
from draftwire._messages.conversation import Conversation, Messages, Tools, conversation_message
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


def conversation_to_tokenize(
    messages: Messages | None,
    tools: Tools | None,
    chat_template_kwargs: Mapping[str, Any] | None,
    add_generation_prompt: bool,
    continue_final_message: bool,
) -> Conversation | None:
    """Returns the conversation for messages; None without them.

    Raises:
        InvalidFieldError: there are no messages for what else was given.
        TypeError: a switch is no bool.
    """
    if messages is not None:
        return Conversation(messages, tools, chat_template_kwargs, add_generation_prompt, continue_final_message)
    changed = not option_types.flag("add_generation_prompt", add_generation_prompt)
    changed |= option_types.flag("continue_final_message", continue_final_message)
    if changed or tools or chat_template_kwargs:
        raise invalid_field("messages", "tools and options of a chat template apply to messages, and none are given")
    return None


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
