"""Checks that values can be encoded in messages, and the errors for those that cannot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TypeVar

from draftwire._messages import option_types
from draftwire._types.quoting import quoted
from draftwire.errors import ErrorReason, FieldViolation, TokenOutOfRangeError, invalid_field

NameT = TypeVar("NameT")
NumberT = TypeVar("NumberT")

UINT64_END = 1 << 64
_UINT32_END = 1 << 32
_LONGEST_TIME = 366 * 86400


def token_ids(field: str, ids: Iterable[int]) -> list[int]:
    """Returns token ids that can be encoded.

    Raises:
        TokenOutOfRangeError: an id is negative or exceeds 32 bits.
        TypeError: a value is not a token id.
    """
    ids = option_types.token_ids(field, ids)
    for index, token_id in enumerate(ids):
        if not is_token_id(token_id):
            raise no_token_id(f"{field}[{index}]", token_id)
    return ids


def is_token_id(number: int) -> bool:
    """Returns whether a number can be the id of a token."""
    return 0 <= number < _UINT32_END


def no_token_id(field: str, number: int) -> TokenOutOfRangeError:
    """Returns the error for a number that cannot be the id of a token."""
    violation = FieldViolation(field, f"{quoted(number)} is not a token id")
    return TokenOutOfRangeError(
        f"{field}: {violation.description}",
        reason=ErrorReason.TOKEN_OUT_OF_RANGE,
        field_violations=(violation,),
    )


def biases(field: str, by_token: Mapping[int, float]) -> dict[int, float]:
    """Returns numbers by token id, with ids that can be encoded; otherwise raises as ``token_ids`` does."""
    for token_id in by_token:
        if not is_token_id(token_id):
            raise no_token_id(f"{field}[{quoted(token_id)}]", token_id)
    return dict(by_token)


def unsigned(field: str, value: int | None, end: int = _UINT32_END, *, least: int = 0) -> int | None:
    """Returns a number that can be encoded.

    Args:
        field: name of the request's field.
        value: the number, or None.
        end: the first number that is too large to encode.
        least: the smallest valid number, only for the error message; the verifier checks it.

    Raises:
        InvalidFieldError: the number is negative or too large.
    """
    if value is not None and value < 0:
        raise invalid_field(field, f"must be at least {least}, got {quoted(value)}")
    if value is not None and value >= end:
        raise invalid_field(field, f"must be below {end}, got {quoted(value)}")
    return value


def duration(field: str, seconds: float | None) -> timedelta | None:
    """Returns seconds as a duration that can be encoded.

    Raises:
        InvalidFieldError: the seconds are not in range.
    """
    if seconds is not None and not (math.isfinite(seconds) and 0 < seconds <= _LONGEST_TIME):
        raise invalid_field(field, f"must be above 0 and at most {_LONGEST_TIME} seconds, got {seconds}")
    return None if seconds is None else timedelta(seconds=seconds)


def text_list(field: str, texts: Iterable[str]) -> list[str]:
    """Returns a list of texts.

    Raises:
        InvalidFieldError: a single text was given, whose letters would be taken for the list.
    """
    if isinstance(texts, str):
        raise invalid_field(field, f"expected a list of strings, got {quoted(texts)}")
    return list(texts)


def named(field: str, known: Mapping[NameT, NumberT], name: NameT) -> NumberT:
    """Returns the number that stands for a name on the wire.

    Raises:
        InvalidFieldError: there is no such name.
    """
    if name not in known:
        raise invalid_field(field, f"{quoted(name)} is unknown; expected one of {', '.join(map(repr, known))}")
    return known[name]
