"""Answers of Llama 3: a call is the whole answer, ``{"name": ..., "parameters": {...}}``."""

from __future__ import annotations

import re
from collections.abc import Collection

from gateway_service.answers.json_call import JsonCall
from gateway_service.answers.part import Content, Part, StepwiseParser
from gateway_service.answers.text_until import WHITE_SPACE, end_of

_TAG = "<|python_tag|>"
_BETWEEN = re.compile(r"[ \t\r\n;]*")


class LlamaParser(StepwiseParser):
    """Reads calls at the start of an answer; from anything else on it is text."""

    def __init__(self, tools: Collection[str]) -> None:
        """tools: names of the tools that there are."""
        self._tools = tools
        self._calls = 0
        self._call: JsonCall | None = None
        self._held: list[str] = []
        """White space and mark before a call."""
        self._mark = ""
        """As much of the mark as has come."""
        self._plain = False

    def _step(self, text: str, at: int) -> tuple[list[Part], int]:
        if self._plain:
            return [Content(text[at:])], len(text)
        return self._before_call(text, at) if self._call is None else self._in_call(self._call, text, at)

    def end(self, *, cut: bool = False) -> list[Part]:
        """Returns the rest. JSON that may be the start of a call is one if the answer was cut off."""
        if self._plain:
            return []
        call = self._call
        if call is not None:
            marked = self._mark == _TAG or self._calls > 0
            if call.started or call.named or marked or (cut and call.likely):
                return call.end()
            return [Content(self._before() + call.text)]
        return [] if self._mark == _TAG or (cut and self._mark) else [Content(self._before())]

    def _before_call(self, text: str, at: int) -> tuple[list[Part], int]:
        begin = at
        if self._mark == _TAG:
            at = end_of(WHITE_SPACE, text, at)
        else:
            if not self._mark:
                at = end_of(_BETWEEN if self._calls else WHITE_SPACE, text, at)
            came = self._mark + text[at : at + len(_TAG) - len(self._mark)]
            if came == _TAG:
                at = end_of(WHITE_SPACE, text, at + len(_TAG) - len(self._mark))
                self._mark = _TAG
            elif came and _TAG.startswith(came):
                self._held.append(text[begin:])
                self._mark = came
                return [], len(text)
            elif self._mark:
                return self._fail(text, begin)
        if at < len(text) and text[at] != "{":
            return self._fail(text, begin)
        self._held.append(text[begin:at])
        if at < len(text):
            self._call = JsonCall(self._calls, self._tools)
        return [], at

    def _fail(self, text: str, begin: int) -> tuple[list[Part], int]:
        self._held.append(text[begin:])
        self._plain = True
        return [Content(self._before())], len(text)

    def _in_call(self, call: JsonCall, text: str, at: int) -> tuple[list[Part], int]:
        parts, at = call.push(text, at)
        if call.ended:
            self._call, self._held, self._mark = None, [], ""
            self._calls += 1
        elif call.failed:
            self._call, self._plain = None, True
            parts = [Content(self._before() + call.text)]
        return parts, at

    def _before(self) -> str:
        """Returns the text held back before a call, without separators of calls."""
        held = "".join(self._held)
        return held[end_of(_BETWEEN, held, 0) :] if self._calls else held
