"""A request to generate, shared by the synchronous and the asyncio client.

The verifier checks ranges, so that every client of the contract gets the same errors. Here is checked only what cannot
be encoded: values of the wrong type (``option_types``), negative numbers in unsigned fields, unknown acceptance rules
and presets.
"""

from __future__ import annotations

import secrets
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
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
from draftwire._messages.off_loop import is_large, kept
from draftwire._messages.option_messages import write_options
from draftwire._messages.validation import UINT64_END, token_ids
from draftwire._types.options import GenerateOptions
from draftwire.errors import invalid_field
from draftwire.v1 import verifier_service_pb2 as pb

Prompt = str | Sequence[int]
"""The text to continue, tokenized by the verifier, or its token ids, used unchanged."""
_MOST_CHOICES = 128
_SEED_BITS = 63
_TOKEN_BYTES = 4


class Request:
    """A prompt or a conversation with the caller's ``GenerateOptions``.

    A large one is encoded on the first use of ``message``, which must then happen off an event loop.
    """

    def __init__(self, prompt: Prompt | Conversation, options: Mapping[str, Any]) -> None:
        """Checks a request and encodes it, unless it is large; see ``of``."""
        self._prompt = prompt
        self._options = dict(options)
        if self._options.get("seed") is None:
            self._options["seed"] = secrets.randbits(_SEED_BITS)
        self._made: list[pb.GenerateRequest] = []
        self._making = threading.Lock()
        self._choice = 0
        self.timeout: float | None = self._options.get("timeout")
        """Timeout in seconds; None for the client's timeout."""
        self.large = is_large(prompt, self._options)
        """Whether encoding it would hold up an event loop."""
        if not self.large:
            self.message  # noqa: B018 - what is wrong with it is raised here

    @classmethod
    def of(cls, prompt: Prompt | Conversation, /, **options: Unpack[GenerateOptions]) -> Self:
        """Returns the request for a prompt or a conversation. The errors of a large one are raised by ``message``.

        Raises:
            InvalidFieldError: a value cannot be encoded, or a message lacks role or content.
            TokenOutOfRangeError: a token id is negative or exceeds 32 bits.
            TypeError: an option has the wrong type or does not exist; the message names it.
        """
        return cls(prompt if isinstance(prompt, Conversation) else kept(prompt), options)

    @classmethod
    def of_chat(cls, messages: Messages, /, **options: Unpack[ChatOptions]) -> Self:
        """Returns the request for a conversation; otherwise as ``of``."""
        given: dict[str, Any] = {**options}
        rendering = {name: given.pop(name) for name in ConversationOptions.__annotations__ if name in given}
        return cls.of(Conversation(kept(messages), **rendering), **given)

    @property
    def message(self) -> pb.GenerateRequest:
        """The message of the first choice; its seed is always set, so that the request can be resumed."""
        with self._making:
            if not self._made:
                self._made.append(_encoded(self._prompt, self._options))
        return self._made[0]

    @property
    def seed(self) -> int:
        """The seed in use."""
        return (option_types.whole("seed", self._options["seed"]) + self._choice) % UINT64_END

    def attempt(self) -> pb.GenerateRequest:
        """Returns a message of its own for an attempt."""
        message = pb.GenerateRequest()
        message.CopyFrom(self.message)
        message.sampling.seed = self.seed
        if self._choice and message.request_id:
            message.request_id += f"-{self._choice}"
        return message

    def choices(self, number: int) -> list[Self]:
        """Returns the requests for several results: the i-th, counted from 0, has the seed plus i.

        Raises:
            InvalidFieldError: the number is not from 1 to 128.
            TypeError: the number is not an integer.
        """
        number = option_types.whole("n", number)
        if not 1 <= number <= _MOST_CHOICES:
            raise invalid_field("n", f"must be from 1 to {_MOST_CHOICES}, got {number}")
        requests = [copy(self) for _ in range(number)]  # with one message, and one lock
        for index, request in enumerate(requests):
            request._choice = index
        return requests


@naming_parameters(GENERATE.path)
def _encoded(prompt: Any, options: Mapping[str, Any]) -> pb.GenerateRequest:
    message = pb.GenerateRequest()
    write_options(message, option_types.checked(options))
    _write_prompt(message, prompt)
    return message


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


def prompt_prefix(request: pb.GenerateRequest, size: int) -> bytes:
    """Returns the first ``size`` bytes of a prompt, by which its verifier is chosen.

    A conversation counts as its roles and contents, concatenated.
    """
    match request.WhichOneof("prompt"):
        case "text":
            return request.text[:size].encode()[:size]
        case "messages":
            return _conversation_prefix(request.messages, size)
        case _:
            return token_prefix(request.token_ids.ids, size)


def token_prefix(ids: Sequence[int], size: int) -> bytes:
    """Returns the first ``size`` bytes of token ids, each as four bytes."""
    whole = b"".join(each.to_bytes(_TOKEN_BYTES, "little") for each in ids[: -(-size // _TOKEN_BYTES)])
    return whole[:size]


def _conversation_prefix(conversation: pb.ChatMessages, size: int) -> bytes:
    found = b""
    for message in conversation.messages:
        found += f"{message.role}\0{message.content[:size]}\0".encode()
        if len(found) >= size:
            break
    return found[:size]
