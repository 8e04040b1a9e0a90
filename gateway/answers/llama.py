"""Answers of Llama 3: a call is the whole answer, ``{"name": ..., "parameters": {...}}``."""

from __future__ import annotations

from collections.abc import Collection

from gateway.answers.json_call import JsonCall
from gateway.answers.part import Content, Part

_TAG = "<|python_tag|>"
_BETWEEN = " \t\r\n;"


class LlamaParser:
    """Reads calls at the start of an answer; from anything else on it is text."""

    def __init__(self, tools: Collection[str]) -> None:
        """tools: names of the tools that there are."""
        self._tools = tools
        self._calls = 0
        self._call: JsonCall | None = None
        self._held = ""
        """White space and mark before a call."""
        self._plain = False

    def push(self, text: str) -> list[Part]:
        """Returns the parts that became final."""
        parts: list[Part] = []
        while text:
            if self._plain:
                return [*parts, Content(text)]
            if self._call is None:
                text = self._before_call(text)
            else:
                more, text = self._in_call(self._call, text)
                parts += more
        return parts

    def end(self) -> list[Part]:
        """Returns the rest; a call that did not come as far as its arguments is text."""
        if self._plain or (self._call is not None and self._call.started):
            return []
        if self._call is not None:
            return [Content(self._held + self._call.text)]
        return [Content(self._held.lstrip(_BETWEEN) if self._calls else self._held)]

    def _before_call(self, text: str) -> str:
        held, self._held = self._held + text, ""
        bare = held.lstrip(_BETWEEN if self._calls else " \t\r\n")
        called = bare.removeprefix(_TAG).lstrip()
        if called.startswith("{"):
            self._held = held[: len(held) - len(called)]
            self._call = JsonCall(self._calls, self._tools)
            return called
        if not called or (bare != _TAG and _TAG.startswith(bare)):
            self._held = held
            return ""
        self._plain = True
        return bare if self._calls else held

    def _in_call(self, call: JsonCall, text: str) -> tuple[list[Part], str]:
        parts, text = call.push(text)
        if call.ended:
            self._call, self._held = None, ""
            self._calls += 1
        elif call.failed:
            before = self._held.lstrip(_BETWEEN) if self._calls else self._held
            self._call, self._plain = None, True
            parts = [Content(before + call.text)]
        return parts, text
