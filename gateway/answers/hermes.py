"""Answers of Hermes and Qwen: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` for each call."""

from __future__ import annotations

from collections.abc import Collection

from gateway.answers.json_call import JsonCall
from gateway.answers.part import Content, Part
from gateway.answers.text_until import TextUntil, TrimmedText

BEGIN, END = "<tool_call>", "</tool_call>"


class HermesParser:
    """Reads text and calls in any order."""

    def __init__(self, tools: Collection[str]) -> None:
        """tools: names of the tools that there are."""
        self._tools = tools
        self._calls = 0
        self._text = TextUntil(BEGIN)
        self._content = TrimmedText(start=True)
        self._call: JsonCall | None = None
        self._closing: str | None = None
        """What came of the end of a call so far; None elsewhere."""

    def push(self, text: str) -> list[Part]:
        """Returns the parts that became final."""
        parts: list[Part] = []
        while text:
            if self._call is not None:
                more, text = self._in_call(self._call, text)
            elif self._closing is not None:
                more, text = [], self._close(self._closing + text)
            else:
                more, text = self._in_text(text)
            parts += more
        return parts

    def end(self) -> list[Part]:
        """Returns the rest; a call that did not come as far as its arguments is text."""
        text = self._text.rest()
        if self._call is not None and not self._call.started:
            text = BEGIN + self._call.text
        return [Content(self._content.push(text) + self._content.rest())]

    def _in_text(self, text: str) -> tuple[list[Part], str]:
        before, text = self._text.push(text)
        if self._text.found is not None:
            self._text = TextUntil(BEGIN)
            self._call = JsonCall(self._calls, self._tools)
        return [Content(self._content.push(before))], text

    def _in_call(self, call: JsonCall, text: str) -> tuple[list[Part], str]:
        parts, text = call.push(text)
        if call.started:
            self._content.drop()
        if call.ended:
            self._call, self._closing = None, ""
            self._calls += 1
        elif call.failed:
            self._call = None
            parts = [Content(self._content.push(BEGIN + call.text))]
        return parts, text

    def _close(self, text: str) -> str:
        """Skips the mark that ends a call, if it comes next; returns what follows."""
        bare = text.lstrip()
        if bare != END and END.startswith(bare):
            self._closing = bare
            return ""
        self._closing = None
        return bare.removeprefix(END)
