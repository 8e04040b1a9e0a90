"""Whole numbers of a request, which clients also write as ``16.0``; and token ids."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WrapValidator
from pydantic.functional_validators import ModelWrapValidatorHandler

_UINT32_END = 1 << 32
UNLIMITED = -1
"""A limit of tokens that is the end of the context, as llama.cpp's clients write it."""


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = BeforeValidator(_whole, json_schema_input_type=int)
"""Reads a float without a fraction as an integer."""
LimitOrNone = Annotated[int, Field(ge=UNLIMITED, lt=_UINT32_END), Whole]
"""Most tokens to generate, or none; -1 stands for the end of the context."""


def _some(limit: int) -> int:
    if not limit:
        raise ValueError("must be at least 1, or -1 for the end of the context")
    return limit


TokenLimit = Annotated[LimitOrNone, AfterValidator(_some)]
"""Most tokens to generate, at least one; -1 stands for the end of the context."""


def limit_of(limit: int | None) -> int | None:
    """Returns a limit of tokens with None for the end of the context."""
    return None if limit == UNLIMITED else limit


TokenId = Annotated[int, Field(ge=0, lt=_UINT32_END), Whole]
"""The id of a token."""


def _all_at_once(value: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
    """Takes a list of many ids in a tenth of the time; what is wrong with another one is said by pydantic."""
    if type(value) is list and set(map(type, value)) == {int} and min(value) >= 0 and max(value) < _UINT32_END:
        return value
    return handler(value)


TokenIds = Annotated[list[TokenId], Field(fail_fast=True), WrapValidator(_all_at_once)]
"""Token ids."""
