"""Tokenizes texts: checks the size of each text first, then reads it in the threads of the TextPool."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sized
from functools import partial
from typing import TypeVar

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.verifier_service_pb2 import ChatFormat, ChatMessages
from draftwire_core.engine.text.tokenizer import ChatTemplateError, Tokenizer
from draftwire_core.runtime.errors import ServiceError, invalid_field, refused_field
from verifier_service.reading.chat import (
    chat_bytes,
    chat_format_message,
    has_broken_calls,
    read_rendering,
    read_variables,
    template_messages,
    template_tools,
)
from verifier_service.reading.text_pool import TextPool

T = TypeVar("T")

_MOST_MESSAGES = 4096
"""Most messages of a conversation, and most tools and calls."""
_TEMPLATE_ROOM = 4
"""Factor by which a conversation may exceed the limit of its rendered text: templates omit spaces, and the reasoning of
earlier turns."""


class TextReader:
    """Reads texts within the length limit of a request. Every fault is a ServiceError that names the field."""

    def __init__(self, tokenizer: Tokenizer, longest: int, bound_by: str, pool: TextPool):
        """longest: most tokens of a request. bound_by: names the cause of that limit in error messages."""
        self._tokenizer = tokenizer
        self._pool = pool
        self._longest = longest
        self._bound_by = bound_by
        self._most_bytes = longest * tokenizer.bytes_per_token

    def check_text(self, field: str, text: str, *, becomes: str = "has") -> int:
        """Returns the size of a text in bytes. Raises ServiceError (CONTEXT_EXCEEDED) if it has more tokens than a
        request may have."""
        size = len(text.encode())
        if size > self._most_bytes:
            raise self._too_long(field, f"{becomes} {size} bytes; at most {self._most_bytes} fit into {self._bound_by}")
        return size

    def check_number(self, field: str, token_ids: Sized) -> None:
        """Raises ServiceError (CONTEXT_EXCEEDED) if there are more token ids than a request may have."""
        if len(token_ids) > self._longest:
            raise self._too_long(field, f"has {len(token_ids)} tokens, more than {self._bound_by}")

    def check_chat(self, chat: ChatMessages) -> int:
        """Returns the size of a conversation in bytes. Raises ServiceError if it cannot be rendered or is too long."""
        if not chat.messages:
            raise refused_field(ErrorReason.ERROR_REASON_EMPTY_PROMPT, "messages.messages", "is empty")
        if not self._tokenizer.has_chat_template:
            raise invalid_field(
                "messages", "the target's tokenizer has no chat template; the verifier's --chat-template gives it one"
            )
        most = min(_MOST_MESSAGES, self._longest)
        if len(chat.messages) > most:
            raise self._too_long("messages.messages", f"has {len(chat.messages)} messages; at most {most} are allowed")
        # An empty one is two bytes of a request, and hundreds of what a template reads.
        if len(chat.tools) > most:
            raise self._too_long("messages.tools", f"has {len(chat.tools)} tools; at most {most} are allowed")
        calls = list(itertools.accumulate(len(each.tool_calls) for each in chat.messages))
        if calls[-1] > most:
            index = bisect.bisect_right(calls, most)
            description = f"makes {calls[index]} calls, with those before it; at most {most} are allowed"
            raise self._too_long(f"messages.messages[{index}].tool_calls", description)
        size = chat_bytes(chat)
        most_bytes = _TEMPLATE_ROOM * self._most_bytes
        if size > most_bytes:
            raise self._too_long("messages", f"has {size} bytes; at most {most_bytes} fit into {self._bound_by}")
        return size

    def rendered(self, chat: ChatMessages) -> str:
        """Renders a conversation with the target's chat template, special tokens included. Runs in a thread, after
        `check_chat`. Raises ServiceError."""
        try:
            text = _without_halves(self._render(chat))
        except ChatTemplateError as error:
            raise invalid_field("messages", _without_halves(str(error))) from error
        self.check_text("messages", text, becomes="has, once rendered by the chat template,")
        return text

    def _render(self, chat: ChatMessages) -> str:
        tools, rendering = template_tools(chat), read_rendering(chat)
        try:
            return self._tokenizer.render_chat(template_messages(chat), tools, rendering)
        except ChatTemplateError:
            if not has_broken_calls(chat):
                raise
            return self._tokenizer.render_chat(template_messages(chat, as_objects=True), tools, rendering)

    async def read_text(self, field: str, text: str, peer: str, *, add_special_tokens: bool = True) -> list[int]:
        """Tokenizes a peer's text. Raises ServiceError."""
        size = self.check_text(field, text)
        return await self.run(partial(self._tokenizer.encode, text, add_special_tokens=add_special_tokens), size, peer)

    async def read_chat(self, chat: ChatMessages, peer: str) -> list[int]:
        """Tokenizes a peer's conversation. Raises ServiceError."""
        # The template writes the special tokens itself.
        return await self.run(
            lambda: self._tokenizer.encode(self.rendered(chat), add_special_tokens=False), self.check_chat(chat), peer
        )

    async def chat_format(self, chat_template_kwargs: str, peer: str) -> ChatFormat:
        """Returns the format of answers to conversations with these variables for the template. Raises ServiceError."""
        field = "chat_template_kwargs"
        size = self.check_text(field, chat_template_kwargs)

        def find() -> ChatFormat:
            variables = read_variables(field, chat_template_kwargs)
            return chat_format_message(self._tokenizer.chat_format_with(variables))

        return await self.run(find, size, peer)

    async def run(self, work: Callable[[], T], size: int, peer: str) -> T:
        """Runs work on a size-checked text in the TextPool and returns its result."""
        return await self._pool.run(work, size, peer)

    def _too_long(self, field: str, description: str) -> ServiceError:
        return refused_field(
            ErrorReason.ERROR_REASON_CONTEXT_EXCEEDED, field, description, max_sequence_tokens=str(self._longest)
        )

    def close(self) -> None:
        """Ends the threads that read texts."""
        self._pool.close()


def _without_halves(text: str) -> str:
    """Returns a text with U+FFFD in place of each half of a surrogate pair, which the JSON of a call's arguments can
    express if a model was cut off within a character, but no tokenizer reads."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
