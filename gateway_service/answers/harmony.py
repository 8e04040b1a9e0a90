"""Answers of gpt-oss: messages in channels, in the format that OpenAI calls harmony."""

from __future__ import annotations

import re
from collections.abc import Collection

from gateway_service.answers.part import CallArguments, CallStart, Content, Part, Reasoning, StepwiseParser
from gateway_service.answers.text_until import TextUntil, TrimmedText

CHANNEL, MESSAGE, START, END, CALL = "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>"
_RETURN = "<|return|>"
_CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"to=(functions\.)?([\w.-]+)")
"""The recipient of a message: a function with its namespace, which models often leave out in long contexts."""


class HarmonyParser(StepwiseParser):
    """Reads messages: reasoning in the channel analysis, calls to functions, and text in the others."""

    def __init__(self, tools: Collection[str]) -> None:
        """tools: names of the tools that there are."""
        self._tools = tools
        self._calls = 0
        self._header: TextUntil | None = TextUntil(MESSAGE)
        """The header being read; None in a message."""
        self._head: list[str] = []
        self._body = TextUntil(END, CALL, _RETURN, START)
        self._kind: type[Content | Reasoning | CallArguments] = Content
        self._content = TrimmedText(start=True)
        self._first = True
        """Whether no message has begun."""
        self._bare = True
        """Whether the message has no text so far."""

    def _step(self, text: str, at: int) -> tuple[list[Part], int]:
        if self._header is None:
            body, at = self._body.push(text, at)
            parts = self._in_body(body)
            return (parts if self._body.found is None else [*parts, *self._end_body()]), at
        head, at = self._header.push(text, at)
        self._head.append(head)
        return ([] if self._header.found is None else self._begin_body()), at

    def end(self, *, cut: bool = False) -> list[Part]:
        """Returns the rest. An answer without any header is text."""
        if self._header is None:
            body = self._in_body(self._body.rest(cut=cut))
            empty = [] if cut else self._empty_call()
            return [*body, Content(self._content.rest()), *empty]
        head = "".join(self._head) + self._header.rest(cut=cut)
        recipient = _RECIPIENT.search(head)
        if recipient is not None and recipient[2] in self._tools:
            return [CallStart(self._calls, recipient[2])]
        begun = head.startswith(CHANNEL) or (cut and CHANNEL.startswith(head))
        return [Content(head)] if self._first and not begun else []

    def _begin_body(self) -> list[Part]:
        head = "".join(self._head)
        self._head, self._header, self._first = [], None, False
        self._body = TextUntil(END, CALL, _RETURN, START)
        channel, recipient = _CHANNEL_NAME.search(head), _RECIPIENT.search(head)
        self._bare = True
        if recipient is not None and recipient[2] in self._tools:
            self._kind = CallArguments
            self._content.drop()
            return [CallStart(self._calls, recipient[2])]
        analysis = (recipient is None or not recipient[1]) and channel is not None and channel[1] == "analysis"
        self._kind = Reasoning if analysis else Content
        return []

    def _in_body(self, text: str) -> list[Part]:
        self._bare = self._bare and not text
        if self._kind is CallArguments:
            return [CallArguments(self._calls, text)]
        return [Reasoning(text)] if self._kind is Reasoning else [Content(self._content.push(text))]

    def _end_body(self) -> list[Part]:
        self._header = TextUntil(MESSAGE)
        parts = self._empty_call()
        self._calls += self._kind is CallArguments
        self._kind = Content
        return parts

    def _empty_call(self) -> list[Part]:
        """Returns the arguments of a call that has none."""
        return [CallArguments(self._calls, "{}")] if self._kind is CallArguments and self._bare else []
