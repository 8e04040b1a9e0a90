"""Results as the commands print them: as JSON, with the fields of dataclasses and what these compute, and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import singledispatch
from typing import Any

from draftwire._types.generation import Generation, TokenLogProb, TokenLogProbs
from draftwire._types.model import ModelInfo
from draftwire._types.rollout import Rollout
from draftwire.errors import DraftwireError

_LEFT_OUT = {Generation: {"choices", "further", "prompt_token_ids"}}
"""Fields that the commands do not print."""


@singledispatch
def json_of(value: Any) -> Any:
    """Returns a result, or a value within one, as a JSON value."""
    return _fields(value) if is_dataclass(value) else value


def _fields(value: Any) -> dict[str, Any]:
    kind = type(value)
    computed = [name for name in dir(kind) if isinstance(getattr(kind, name), property)]
    names = [*(field.name for field in fields(value)), *computed]
    return {name: json_of(getattr(value, name)) for name in names if name not in _LEFT_OUT.get(kind, ())}


@json_of.register(list)
def _(values: list[Any]) -> list[Any]:
    return [json_of(value) for value in values]


@json_of.register
def _(time: datetime) -> str:
    return time.isoformat()


@json_of.register
def _(error: DraftwireError) -> str:
    return str(error)


@json_of.register
def _(model: ModelInfo) -> str:
    return model.model_id


@json_of.register
def _(rollout: Rollout) -> dict[str, Any]:
    return {**_fields(rollout), "reason": rollout.reason or None}


@json_of.register
def _(logprobs: TokenLogProbs) -> dict[str, Any]:
    return {**json_of(logprobs.token), "rank": logprobs.rank, "top": json_of(logprobs.top)}


@json_of.register
def _(logprob: TokenLogProb) -> dict[str, Any]:
    number, text = logprob.logprob, logprob.text
    return {"token_id": logprob.token_id, "logprob": number, "text": text, "bytes": list(logprob.text_bytes)}


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> None:
    """Prints rows under headings; ``align`` has ``<`` or ``>`` for each column. No cell is ever cut."""
    rows = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{cell:{align[index]}{widths[index]}}" for index, cell in enumerate(row)).rstrip())


def print_logprobs(heading: str, logprobs: Sequence[TokenLogProbs | None]) -> None:
    """Prints a line per token, except for the first token of a prompt. ``heading`` names the text."""
    rows = [
        (
            _spelled(each.token),
            f"{each.token.logprob:.4f}",
            str(each.rank),
            " ".join(f"{_spelled(top)} {top.logprob:.4f}" for top in each.top),
        )
        for each in logprobs
        if each is not None
    ]
    print_table((heading, "LOGPROB", "RANK", "LIKELIEST"), rows, "<>><")


def _spelled(token: TokenLogProb) -> str:
    return repr(token.text)
