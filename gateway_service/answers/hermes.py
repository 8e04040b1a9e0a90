"""Answers of Hermes and Qwen: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` for each call."""

from __future__ import annotations

from collections.abc import Collection

from gateway_service.answers.json_call import JsonCall
from gateway_service.answers.part import Content, Part, StepwiseParser
from gateway_service.answers.text_until import WHITE_SPACE, TextUntil, TrimmedText, end_of

BEGIN, END = "<tool_call>", "</tool_call>"


class HermesParser(StepwiseParser):
    """Reads text and calls in any order."""

    def __init__(self, tools: Collection[str]) -> None:
        """tools: names of the tools that there are."""
        self._tools = tools
        self._calls = 0
        self._text = TextUntil(BEGIN)
        self._content = TrimmedText(start=True)
        self._call: JsonCall | None = None
        self._closing: str | None = None
        """The part of a call's end that has come so far; None elsewhere."""

    def _step(self, text: str, at: int) -> tuple[list[Part], int]:
        if self._call is not None:
            return self._in_call(self._call, text, at)
        if self._closing is not None:
            return [], self._close(self._closing, text, at)
        return self._in_text(text, at)

    def end(self, *, cut: bool = False) -> list[Part]:
        """Returns the rest."""
        if self._call is not None:
            return self._call.end()
        return [Content(self._content.push(self._text.rest(cut=cut)) + self._content.rest())]

    def _in_text(self, text: str, at: int) -> tuple[list[Part], int]:
        before, at = self._text.push(text, at)
        if self._text.found is not None:
            self._text = TextUntil(BEGIN)
            self._call = JsonCall(self._calls, self._tools)
        return [Content(self._content.push(before))], at

    def _in_call(self, call: JsonCall, text: str, at: int) -> tuple[list[Part], int]:
        parts, at = call.push(text, at)
        if call.started:
            self._content.drop()
        if call.ended:
            self._call, self._closing = None, ""
            self._calls += 1
        elif call.failed:
            self._call = None
            parts = [Content(self._content.push(BEGIN + call.text))]
        return parts, at

    def _close(self, closing: str, text: str, at: int) -> int:
        """Skips the mark that ends a call, if it comes next; returns the index of what follows.

        What turns out to be no mark is passed on as text.
        """
        if not closing:
            at = end_of(WHITE_SPACE, text, at)
        if at == len(text):
            return at
        bare = closing + text[at : at + len(END) - len(closing)]
        if bare != END and END.startswith(bare):
            self._closing = bare
            return len(text)
        self._closing = None
        if bare == END:
            return at + len(END) - len(closing)
        self._text.hold(closing)
        return at
