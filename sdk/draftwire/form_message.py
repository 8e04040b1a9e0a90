"""Builds the contract's message of a form of output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from draftwire.errors import invalid_field
from draftwire.v1 import structured_output_pb2


def form_message(
    *,
    json_schema: str | Mapping[str, Any] | None,
    choice: list[str] | None,
    jump_ahead: bool | None,
    **simple: str | bool | None,
) -> structured_output_pb2.StructuredOutput | None:
    """Return the message of a form, None where none is asked for.

    Args:
        json_schema: a schema, as a text or as what it says.
        choice: the texts to choose from.
        jump_ahead: whether to propose what the form leaves no choice about.
        simple: the forms that are one value, by their fields in the contract.

    Raises:
        InvalidFieldError: more than one form.
    """
    forms = {name: form for name, form in simple.items() if form is not None}
    if json_schema is not None:
        forms["json_schema"] = json_schema if isinstance(json_schema, str) else json.dumps(json_schema)
    if len(forms) + (choice is not None) > 1:
        names = ["grammar" if form == "lark" else form for form in forms] + ["choice"] * (choice is not None)
        raise invalid_field("structured_output", f"has more than one form: {', '.join(sorted(names))}")
    if not forms and choice is None:
        return None
    message = structured_output_pb2.StructuredOutput()
    if jump_ahead is not None:
        message.jump_ahead = jump_ahead
    if choice is not None:
        message.choice.texts.extend(choice)
        message.choice.SetInParent()
    for name, form in forms.items():
        setattr(message, name, form)
    return message
