"""Bounds on the number of a field's elements, checked before the elements are."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

MOST_MESSAGES = 4096
"""Most messages of a conversation, as the verifier allows."""
MOST_TOOLS = 128
"""Most tools of a request."""
MOST_PARTS = 1024
"""Most parts of a message."""
_MOST_STRINGS = 4096


def at_most(most: int, least: int = 0) -> Any:
    """Returns the bounds of a list, whose first wrong element ends its validation."""
    return Field(min_length=least, max_length=most, fail_fast=True)


Strings = Annotated[list[str], at_most(_MOST_STRINGS)]
"""A list of strings."""


def members_at_most(most: int) -> BeforeValidator:
    """Returns a validator that bounds an object before its members are validated, all of which pydantic looks at."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            raise PydanticCustomError("too_long", "must have at most {most} members", {"most": most})
        return value

    return BeforeValidator(check)
