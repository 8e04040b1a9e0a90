"""Builders of the contract's messages for speculation and structured output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from draftwire._messages.validation import named, token_ids, unsigned
from draftwire._types.acceptance import PLANNINGS, PRESETS, RULES
from draftwire._types.quoting import quoted
from draftwire._types.speculation import Acceptance, Speculation
from draftwire.errors import invalid_field
from draftwire.v1 import speculation_pb2, structured_output_pb2


def speculation_message(speculation: Speculation) -> speculation_pb2.SpeculationOptions:
    """Returns the message for a request's speculation options.

    Raises:
        InvalidFieldError: a value cannot be encoded.
        TokenOutOfRangeError: a token id of the prediction is negative or exceeds 32 bits.
    """
    number, names = _drafters(speculation.drafters)
    default: Acceptance | None = "coupled" if speculation.preset is None else None  # a preset implies its rule
    return speculation_pb2.SpeculationOptions(
        enabled=speculation.enabled,
        drafter=speculation.drafter,
        max_draft_tokens=unsigned("speculation.max_draft_tokens", speculation.max_draft_tokens),
        planning=named("speculation.planning", PLANNINGS, speculation.planning),
        acceptance=named("speculation.acceptance", RULES, speculation.acceptance or default),
        labels=speculation.labels,
        drafters=unsigned("speculation.drafters", number, least=1),
        drafter_names=names,
        prediction=_prediction(speculation.prediction),
        preset=named("speculation.preset", PRESETS, speculation.preset),
        threshold=speculation.threshold,
        posterior_threshold=speculation.posterior_threshold,
        posterior_alpha=speculation.posterior_alpha,
        dynamic_temperature=speculation.dynamic_temperature,
    )


def _drafters(drafters: int | Sequence[str] | None) -> tuple[int | None, list[str]]:
    """Returns the number of drafters, or their names."""
    if isinstance(drafters, str):
        raise invalid_field("speculation.drafters", f"expected a number or a list of names, got {quoted(drafters)}")
    return (drafters, []) if drafters is None or isinstance(drafters, int) else (None, list(drafters))


def _prediction(prediction: str | Sequence[int] | None) -> speculation_pb2.Prediction | None:
    if prediction is None:
        return None
    if isinstance(prediction, str):
        return speculation_pb2.Prediction(text=prediction)
    return speculation_pb2.Prediction(token_ids=token_ids("speculation.prediction.token_ids", prediction))


def form_message(
    *,
    json_schema: str | Mapping[str, Any] | None,
    choice: list[str] | None,
    jump_ahead: bool | None,
    **simple: str | bool | None,
) -> structured_output_pb2.StructuredOutput | None:
    """Returns the message for a structured output, or None if none is requested.

    Args:
        json_schema: a schema, as JSON text or as a mapping.
        choice: the texts to choose from.
        jump_ahead: whether to propose tokens that the constraint leaves no choice about.
        simple: constraints with a single value, by their fields in the contract.

    Raises:
        InvalidFieldError: more than one constraint was given.
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
