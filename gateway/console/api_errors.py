"""Errors of the console's API: a status, a message, and the field that is wrong, as JSON."""

from __future__ import annotations

import math
from typing import Any

from starlette.responses import JSONResponse

from draftwire import DraftwireError

_STATUSES = {
    "INVALID_ARGUMENT": 400,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "FAILED_PRECONDITION": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 503,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""By canonical code; that of others is 500."""
_RENAMED = {"text": "prompt"}
"""Fields that the contract calls otherwise."""


class ApiError(Exception):
    """A request that the console itself refuses."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.field = field

    def response(self) -> JSONResponse:
        """The response that says so."""
        return JSONResponse(_body(str(self), self.field), self.status)


def describe_error(error: DraftwireError) -> dict[str, Any]:
    """Return what the page is told of an error of the SDK."""
    field = error.fields[0].removeprefix("sampling.") if error.fields else None
    return _body(str(error), _RENAMED.get(field, field) if field is not None else None)


def error_response(error: DraftwireError) -> JSONResponse:
    """Return the response for an error of the SDK."""
    after = error.retry_after_seconds
    headers = {"Retry-After": str(math.ceil(after))} if after is not None else None
    return JSONResponse(describe_error(error), _STATUSES.get(error.code.name, 500), headers)


def _body(message: str, field: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "field": field}}
