"""Request ids, as callers give them and logs show them."""

import re
from collections.abc import Iterable

from draftwire_core.runtime.errors import invalid_field

HEADER = "x-request-id"
"""Metadata key under which a call may carry its request id."""

_LONGEST = 256
_NAME = re.compile(rf"[\x21-\x7e]{{1,{_LONGEST}}}")


def check_request_id(field: str, name: str) -> str:
    """Returns the id unchanged. Raises ServiceError if it is not one printable word for the log."""
    if not _NAME.fullmatch(name):
        raise invalid_field(field, f"must be 1 to 256 visible ASCII characters, got {len(name)} characters")
    return name


def as_request_id(name: str) -> str:
    """Returns another program's name of a request as a request id: cut off, with `_` for each other character."""
    return re.sub(r"[^\x21-\x7e]", "_", name[:_LONGEST])


def given_request_id(name: str, metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Returns the id that a call carries: from its message's field, else from its metadata; empty if it has none.

    Raises ServiceError as `check_request_id`.
    """
    if name:
        return check_request_id("request_id", name)
    for key, value in metadata:
        if key == HEADER and isinstance(value, str):
            return check_request_id(HEADER, value)
    return ""
