"""Contents of messages: texts, or parts that are texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from draftwire._types.quoting import shortened
from gateway_service.http.errors import UNSUPPORTED_PART
from gateway_service.openai.fields.checks import IS_LIST, IS_TEXT, MOST_PARTS, at_most, text_or_list


def text_alone(*kinds: str) -> Callable[[Any], Any]:
    """Returns a check that refuses other types of parts by their names, since a model may well understand them
    elsewhere."""

    def check(kind: Any) -> Any:
        if isinstance(kind, str) and kind not in kinds:
            raise PydanticCustomError(
                UNSUPPORTED_PART,
                "parts of type {kind} are not supported: models are served for text alone",
                {"kind": shortened(kind)},
            )
        return kind

    return check


def refusal_as_text(part: Any) -> Any:
    """Returns a part of an earlier answer as a text if it is a refusal, as OpenAI's models write it."""
    if isinstance(part, dict) and part.get("type") == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    return part


_UNREADABLE = ("image_url", "input_audio", "file", "input_image", "input_file")


def readable(part: Any) -> Any:
    """Returns a text for an image, a file or a sound of a tool's result. Agents open them unasked, and send what they
    got with every further request."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in _UNREADABLE:
        return part
    return {"type": "text", "text": f"[{kind} left out: the model reads text alone]", "left_out": kind}


def read_behind_results(key: str, *results: str) -> Callable[[Any], Any]:
    """Returns a function that makes parts of users' messages behind results `readable`, since agents such as goose,
    Cline, and Claude Code behind litellm send what a tool returned as an image there. key, results: what distinguishes
    results from other messages."""

    def read(messages: Any) -> Any:
        if not isinstance(messages, list):
            return messages
        found, behind = [], False
        for message in messages:
            told = message if isinstance(message, dict) else {}
            if behind and told.get("role") == "user" and isinstance(told.get("content"), list):
                found.append(told | {"content": [readable(part) for part in told["content"]]})
            else:
                found.append(message)
            behind = told.get(key) in results or (behind and told.get("role") == "user")
        return found

    return read


class TextPart(BaseModel):
    """A part of a message's content."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: Annotated[Literal["text"], BeforeValidator(text_alone("text"))]
    text: str
    left_out: str | None = None
    """Type of what the text stands for; see `readable`."""


Content = Annotated[
    Annotated[str, IS_TEXT]
    | Annotated[list[Annotated[TextPart, BeforeValidator(refusal_as_text)]], at_most(MOST_PARTS), IS_LIST],
    text_or_list(f"a string or a list of at most {MOST_PARTS} parts of type text"),
]
"""Content of a message: one text, or several parts."""


def text_of(content: str | list[TextPart]) -> str:
    """Returns a content as one text."""
    return content if isinstance(content, str) else "".join(part.text for part in content)
