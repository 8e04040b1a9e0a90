"""Fields that are a text or a list, whose errors name the element at fault."""

from __future__ import annotations

from typing import Any

from pydantic import Discriminator, Tag

IS_TEXT, IS_LIST = Tag("<text>"), Tag("<list>")
"""Names of the two; marks in angle brackets are left out of an error's place."""


def _kind(value: Any) -> str | None:
    if isinstance(value, str):
        return IS_TEXT.tag
    return IS_LIST.tag if isinstance(value, list) else None


def text_or_list(description: str) -> Discriminator:
    """Decides by a value's own type. description: what a value may be, for the error of one that is neither."""
    return Discriminator(_kind, custom_error_type="text_or_list", custom_error_message=f"must be {description}")
