"""Builds the contract's message of the options of speculation."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire.acceptance import PRESETS, RULES
from draftwire.errors import invalid_field
from draftwire.shortened import quoted
from draftwire.speculation import Acceptance, Speculation
from draftwire.v1 import speculation_pb2
from draftwire.wire_values import named, token_ids, unsigned


def speculation_message(speculation: Speculation) -> speculation_pb2.SpeculationOptions:
    """Return the message of a request's wishes.

    Raises:
        InvalidFieldError: a value that the wire cannot carry.
        TokenOutOfRangeError: a token id of the prediction below 0 or beyond 32 bits.
    """
    number, names = _drafters(speculation.drafters)
    default: Acceptance | None = "coupled" if speculation.preset is None else None  # a preset stands for its rule
    return speculation_pb2.SpeculationOptions(
        enabled=speculation.enabled,
        drafter=speculation.drafter,
        max_draft_tokens=unsigned("speculation.max_draft_tokens", speculation.max_draft_tokens),
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
    """Number of drafters, or their names."""
    if isinstance(drafters, str):
        raise invalid_field("speculation.drafters", f"expected a number or a list of names, got {quoted(drafters)}")
    return (drafters, []) if drafters is None or isinstance(drafters, int) else (None, list(drafters))


def _prediction(prediction: str | Sequence[int] | None) -> speculation_pb2.Prediction | None:
    if prediction is None:
        return None
    if isinstance(prediction, str):
        return speculation_pb2.Prediction(text=prediction)
    return speculation_pb2.Prediction(token_ids=token_ids("speculation.prediction.token_ids", prediction))
