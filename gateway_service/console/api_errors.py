"""Errors of the console's API as JSON: message, wrong field and status, also at the end of a stream."""

from __future__ import annotations

import math
from typing import Any

from starlette.responses import JSONResponse

from draftwire import DraftwireError
from draftwire._types.quoting import shortened
from gateway_service.http.field_names import FieldNames

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
"""HTTP status by canonical code, else 500. 502 means that the gateway's token or its verifier's address is wrong."""
_NAMES = FieldNames({"new_name": "new", "old_name": "old"})
_MOST_MESSAGE, _MOST_FIELD = 1000, 200
"""Most characters of an error's message and field, both of which may repeat parts of the request."""


class ApiError(Exception):
    """An error in a request, found by the console itself."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.field = field

    def response(self) -> JSONResponse:
        """Returns the response that reports the error."""
        return JSONResponse(_body(str(self), self.field, self.status), self.status)


def describe_error(error: DraftwireError) -> dict[str, Any]:
    """Returns an error of the SDK as JSON for the page."""
    field = _NAMES.param(error.fields[0]) if error.fields else None
    return _body(_NAMES.message(error), field, _status_of(error))


def error_response(error: DraftwireError) -> JSONResponse:
    """Returns the response for an error of the SDK."""
    after = error.retry_after_seconds
    headers = {"Retry-After": str(math.ceil(after))} if after is not None else None
    return JSONResponse(describe_error(error), _status_of(error), headers)


def _status_of(error: DraftwireError) -> int:
    return _STATUSES.get(error.code.name, 500)


def _body(message: str, field: str | None, status: int) -> dict[str, Any]:
    field = None if field is None else shortened(field, _MOST_FIELD)
    return {"error": {"message": shortened(message, _MOST_MESSAGE), "field": field, "status": status}}
