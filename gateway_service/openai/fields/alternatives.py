"""Fields of one of several types, with one error for all of these or for the element at fault."""

from __future__ import annotations

from typing import Any

from pydantic import Discriminator, Tag, ValidationError, WrapValidator
from pydantic.functional_validators import ModelWrapValidatorHandler

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
