"""Names of requests, as callers give them and logs show them."""

import re
from collections.abc import Iterable

from service_runtime.errors import invalid_field

HEADER = "x-request-id"
"""The metadata by which a call may bring its request's name."""

_NAME = re.compile(r"[\x21-\x7e]{1,256}")


def check_request_id(field: str, name: str) -> str:
    """Returns the name as it is. Raises ServiceError where a line of the log could not show it as one word."""
    if not _NAME.fullmatch(name):
        raise invalid_field(field, f"must be 1 to 256 visible ASCII characters, has {len(name)} characters")
    return name


def given_request_id(name: str, metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The name that a call brings: its message's field, else its metadata's; empty where it brings none.

    Raises ServiceError as `check_request_id`.
    """
    if name:
        return check_request_id("request_id", name)
    for key, value in metadata:
        if key == HEADER and isinstance(value, str):
            return check_request_id(HEADER, value)
    return ""
