"""Token ids in requests."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WrapValidator
from pydantic.functional_validators import ModelWrapValidatorHandler

_UINT32_END = 1 << 32
TokenId = Annotated[int, Field(ge=0, lt=_UINT32_END)]
"""The id of a token."""


def _all_at_once(value: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
    """Takes a list of many ids in a tenth of the time; what is wrong with another one is said by pydantic."""
    if type(value) is list and set(map(type, value)) == {int} and min(value) >= 0 and max(value) < _UINT32_END:
        return value
    return handler(value)


TokenIds = Annotated[list[TokenId], Field(fail_fast=True), WrapValidator(_all_at_once)]
"""Token ids."""
