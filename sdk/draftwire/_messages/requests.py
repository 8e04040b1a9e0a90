"""A request to generate, shared by the synchronous and the asyncio client.

The verifier checks ranges, so that every client of the contract gets the same errors. Here is checked only what cannot
be encoded: values of the wrong type (``option_types``), negative numbers in unsigned fields, unknown acceptance rules
and presets.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, Unpack

from draftwire._messages import option_types
from draftwire._messages.conversation import (
    ChatOptions,
    Conversation,
    ConversationOptions,
    Messages,
    conversation_message,
)
from draftwire._messages.field_names import naming_parameters
from draftwire._messages.methods import GENERATE
from draftwire._messages.option_messages import write_options
from draftwire._messages.validation import UINT64_END, token_ids
from draftwire._types.options import GenerateOptions
from draftwire.errors import invalid_field
from draftwire.v1 import verifier_service_pb2 as pb

Prompt = str | Sequence[int]
"""The text to continue, tokenized by the verifier, or its token ids, used unchanged."""
_MOST_CHOICES = 128
_SEED_BITS = 63


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt or a conversation with the caller's ``GenerateOptions``, ready to be sent."""

    message: pb.GenerateRequest
    """The message; its seed is always set, so that the request can be resumed."""
    timeout: float | None
    """Timeout in seconds; None for the client's timeout."""

    @classmethod
    @naming_parameters(GENERATE.path)
    def of(cls, prompt: Prompt | Conversation, /, **options: Unpack[GenerateOptions]) -> Self:
        """Returns the request for a prompt or a conversation.

        Raises:
            InvalidFieldError: a value cannot be encoded, or a message lacks role or content.
            TokenOutOfRangeError: a token id is negative or exceeds 32 bits.
            TypeError: an option has the wrong type or does not exist; the message names it.
        """
        checked = option_types.checked(options)
        if checked.get("seed") is None:
            checked["seed"] = secrets.randbits(_SEED_BITS)
        message = pb.GenerateRequest()
        write_options(message, checked)
        _write_prompt(message, prompt)
        return cls(message, checked.get("timeout"))

    @classmethod
    def of_chat(cls, messages: Messages, /, **options: Unpack[ChatOptions]) -> Self:
        """Returns the request for a conversation; otherwise as ``of``."""
        given: dict[str, Any] = {**options}
        rendering = {name: given.pop(name) for name in ConversationOptions.__annotations__ if name in given}
        return cls.of(Conversation(messages, **rendering), **given)

    def choices(self, number: int) -> list[Self]:
        """Returns the requests for several results: the i-th, counted from 0, has the seed plus i.

        Raises:
            InvalidFieldError: the number is not from 1 to 128.
            TypeError: the number is not an integer.
        """
        number = option_types.whole("n", number)
        if not 1 <= number <= _MOST_CHOICES:
            raise invalid_field("n", f"must be from 1 to {_MOST_CHOICES}, got {number}")
        requests = [self]
        for index in range(1, number):
            message = pb.GenerateRequest()
            message.CopyFrom(self.message)
            message.sampling.seed = (message.sampling.seed + index) % UINT64_END
            if message.request_id:
                message.request_id += f"-{index}"
            requests.append(replace(self, message=message))
        return requests


def _write_prompt(message: pb.GenerateRequest, prompt: Any) -> None:
    if isinstance(prompt, Conversation):
        message.messages.CopyFrom(conversation_message(prompt))
    elif isinstance(prompt, str):
        message.text = prompt
    elif isinstance(prompt, bytes | bytearray):
        raise TypeError("prompt: expected a string or a sequence of token ids, not bytes")
    else:
        message.token_ids.ids.extend(token_ids("token_ids.ids", _prompt_ids(prompt)))
        message.token_ids.SetInParent()


def _prompt_ids(prompt: Any) -> list[int]:
    if isinstance(prompt, Mapping) or not isinstance(prompt, Iterable):
        raise option_types.wrong_type("prompt", "a string or a sequence of token ids", prompt)
    return option_types.token_ids("prompt", prompt)


def new_request_id() -> str:
    """Returns a new id for a change, by which a service recognizes a repeated request."""
    return uuid.uuid4().hex


def batch_seeds(seed: int | Sequence[int] | None, count: int) -> list[int | None]:
    """Returns the seed of each request of a batch.

    A single int is the seed of every request, so that each result equals that of a single call with it.

    Raises:
        ValueError: the number of seeds is not the number of prompts.
    """
    if isinstance(seed, str) or not isinstance(seed, Iterable):
        return [seed] * count
    seeds: list[int | None] = list(seed)
    if len(seeds) != count:
        raise ValueError(f"seed: {len(seeds)} seeds for {count} prompts")
    return seeds
