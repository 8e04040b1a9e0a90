"""Errors of the console's API as JSON: a message, the field that is wrong, and the status, also at a stream's end."""

from __future__ import annotations

import math
from typing import Any

from starlette.responses import JSONResponse

from draftwire import DraftwireError
from draftwire._types.quoting import shortened
from gateway.http.field_names import FieldNames

_STATUSES = {
    "INVALID_ARGUMENT": 400,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "FAILED_PRECONDITION": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNAUTHENTICATED": 502,
    "PERMISSION_DENIED": 502,
    "UNIMPLEMENTED": 502,
    "CANCELLED": 503,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}
"""By canonical code; that of others is 500. With 502 the gateway's own token, or its verifier's address, is wrong."""
_NAMES = FieldNames({"new_name": "new", "old_name": "old"})
_MOST_MESSAGE, _MOST_FIELD = 1000, 200
"""Characters. Both may repeat what came with a request."""


class ApiError(Exception):
    """A request that the console itself refuses."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.field = field

    def response(self) -> JSONResponse:
        """The response that says so."""
        return JSONResponse(_body(str(self), self.field, self.status), self.status)


def describe_error(error: DraftwireError) -> dict[str, Any]:
    """Return what the page is told of an error of the SDK."""
    field = _NAMES.param(error.fields[0]) if error.fields else None
    return _body(_NAMES.message(error), field, _status_of(error))


def error_response(error: DraftwireError) -> JSONResponse:
    """Return the response for an error of the SDK."""
    after = error.retry_after_seconds
    headers = {"Retry-After": str(math.ceil(after))} if after is not None else None
    return JSONResponse(describe_error(error), _status_of(error), headers)


def _status_of(error: DraftwireError) -> int:
    return _STATUSES.get(error.code.name, 500)


def _body(message: str, field: str | None, status: int) -> dict[str, Any]:
    field = None if field is None else shortened(field, _MOST_FIELD)
    return {"error": {"message": shortened(message, _MOST_MESSAGE), "field": field, "status": status}}
