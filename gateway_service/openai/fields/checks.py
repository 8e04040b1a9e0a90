"""Checks of fields: of one of several types, with one error for all of these or for the element at fault; of the number
of elements, before the elements are checked."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, ValidationError, WrapValidator
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import PydanticCustomError

IS_TEXT, IS_LIST = Tag("<text>"), Tag("<list>")
"""Names of the two; marks in angle brackets are left out of an error's place."""


def _kind(value: Any) -> str | None:
    if isinstance(value, str):
        return IS_TEXT.tag
    return IS_LIST.tag if isinstance(value, list) else None


def text_or_list(description: str) -> Discriminator:
    """Decides by a value's own type. description: what a value may be, for the error of one that is neither."""
    return Discriminator(_kind, custom_error_type="text_or_list", custom_error_message=f"must be {description}")


def one_of(description: str) -> WrapValidator:
    """Reports one error for a value that fits none of several types, instead of one error per type."""

    def validate(value: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise ValueError(f"must be {description}") from error

    return WrapValidator(validate)


MOST_MESSAGES = 4096
"""Most messages of a conversation, as the verifier allows."""
MOST_TOOLS = 128
"""Most tools of a request."""
MOST_PARTS = 1024
"""Most parts of a message."""
MOST_STRINGS = 4096
"""Most strings of a list."""


def at_most(most: int, least: int = 0) -> Any:
    """Returns the bounds of a list, whose first wrong element ends its validation."""
    return Field(min_length=least, max_length=most, fail_fast=True)


Strings = Annotated[list[str], at_most(MOST_STRINGS)]
"""A list of strings."""


def _finite(value: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise ValueError("must have finite numbers") from error
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_finite)]
"""An object that is passed on as JSON. Reading a body makes infinities of numbers like 1e999, and takes NaN."""


def members_at_most(most: int) -> BeforeValidator:
    """Returns a validator that bounds an object before its members are validated, all of which pydantic looks at."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            raise PydanticCustomError("too_long", "must have at most {most} members", {"most": most})
        return value

    return BeforeValidator(check)
