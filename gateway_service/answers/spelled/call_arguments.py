"""Arguments of a call, read in pieces and turned into JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from draftwire import CallSpelling
from gateway_service.answers.json_call import JsonValue
from gateway_service.answers.spelled.expected_text import ExpectedText
from gateway_service.answers.spelled.literal_arguments import LiteralArguments
from gateway_service.answers.spelled.parameter_arguments import ParameterArguments
from gateway_service.answers.text_until import WHITE_SPACE, end_of


class CallArgumentsReader(Protocol):
    """Reads the arguments of one call, from behind its name on."""

    ended: bool
    """Whether the arguments are complete."""
    failed: bool
    """Whether there are no arguments; nothing was returned then."""

    def push(self, text: str, at: int) -> tuple[str, int]:
        """Returns the JSON text that became final, and the index in `text` of what follows."""

    def left(self) -> str:
        """Returns the text behind the arguments that was read, and is none of theirs."""

    def end(self) -> str:
        """Returns the rest of the JSON text, at the end of an answer that leaves out no more than marks."""


def arguments_reader(
    spelling: CallSpelling, schema: Mapping[str, Any], *, enforced: bool = False
) -> CallArgumentsReader:
    """Returns the reader for a call's arguments. schema: JSON schema of the tool's arguments. enforced: whether a
    grammar holds for them."""
    match spelling.style:
        case "keywords":
            return LiteralArguments("(", "")
        case "bare_keys":
            return LiteralArguments("{", spelling.quote)
        case "parameters":
            return ParameterArguments(spelling, schema, enforced=enforced)
    return JsonArguments(spelling.name_end)


class JsonArguments:
    """Reads arguments that are JSON; they stay as they are written."""

    def __init__(self, before: str) -> None:
        """before: what stands before them."""
        self._before = ExpectedText([before]) if before.strip() else None
        self._value: JsonValue | None = None
        self.ended = self.failed = False

    def push(self, text: str, at: int) -> tuple[str, int]:
        """Returns the JSON text that became final, and the index in `text` of what follows."""
        if self._before is not None:
            at = self._before.push(text, at)
            self.failed = self._before.failed
            if self._before.found is None:
                return "", at
            self._before = None
        if self._value is None:
            at = end_of(WHITE_SPACE, text, at)
            if at == len(text):
                return "", at
            self.failed = text[at] != "{"
            if self.failed:
                return "", at
            self._value = JsonValue()
        end = self._value.take(text, at)
        self.ended = self._value.ended
        return text[at:end], end

    def left(self) -> str:
        """Returns nothing: the end of JSON shows by itself."""
        return ""

    def end(self) -> str:
        """Returns nothing: JSON that has not ended lacks a part."""
        return ""
