"""Tokenization of a text by the target's tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from draftwire._messages import option_types
from draftwire._messages.conversation import Conversation, ConversationOptions, Messages, conversation_message
from draftwire._messages.field_names import naming_parameters
from draftwire._messages.methods import TOKENIZE
from draftwire._messages.validation import token_ids
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


class TokenizeOptions(ConversationOptions, total=False):
    """Keyword parameters of a tokenization. Those of ``ConversationOptions`` apply to messages."""

    messages: Messages | None
    """A conversation instead of a text, rendered by the chat template, as ``chat`` takes it."""
    add_special_tokens: bool
    """Add the special tokens that the tokenizer puts around a text; default False. A chat template adds its own."""
    timeout: float | None
    """Seconds to wait; default: the client's timeout."""


@naming_parameters(TOKENIZE.path)
def tokenize_request(text: str | None, options: TokenizeOptions) -> pb.TokenizeRequest:
    """Returns the request for a text or a conversation.

    Raises:
        InvalidFieldError: both of them or neither were given, there are no messages for the options of a conversation,
            or a message lacks role or content.
        TypeError: an option does not exist, or a switch is no bool.
    """
    option_types.check_names(options, TokenizeOptions.__annotations__.keys())
    given: dict[str, Any] = {"messages": None, "add_special_tokens": False, "timeout": None, **options}
    messages, special, _ = (given.pop(name) for name in ("messages", "add_special_tokens", "timeout"))
    conversation = Conversation(() if messages is None else messages, **given)
    if messages is None:
        _check_usual(conversation)
    if (text is None) == (messages is None):
        raise invalid_field("text", "expected either a text or messages")
    return pb.TokenizeRequest(
        text=text or "",
        add_special_tokens=special,
        messages=None if messages is None else conversation_message(conversation),
    )


def _check_usual(conversation: Conversation) -> None:
    changed = not option_types.flag("add_generation_prompt", conversation.add_generation_prompt)
    changed |= option_types.flag("continue_final_message", conversation.continue_final_message)
    if changed or conversation.tools or conversation.chat_template_kwargs:
        raise invalid_field("messages", "tools and options of a chat template apply to messages, and none are given")


def detokenize_request(ids: Iterable[int], skip_special_tokens: bool) -> pb.DetokenizeRequest:
    """Returns the request for the text of token ids; raises as ``token_ids`` does."""
    return pb.DetokenizeRequest(token_ids=token_ids("token_ids", ids), skip_special_tokens=skip_special_tokens)
