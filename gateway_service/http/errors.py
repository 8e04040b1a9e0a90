"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from draftwire import (
    AtCapacityError,
    ContextExceededError,
    DeadlineExceededError,
    DrafterNotFoundError,
    DraftwireError,
    FailedPreconditionError,
    InvalidArgumentError,
    MessageTooLargeError,
    ModelMismatchError,
    NotFoundError,
    PermissionDeniedError,
    RequestCancelledError,
    ResourceExhaustedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from draftwire._types.quoting import shortened
from gateway_service.http.field_names import FIELD_NAMES, FieldNames

_MOST_MESSAGE, _MOST_PARAM = 1000, 200
"""Most characters of an error's message and param, both of which may repeat parts of the request."""
RETRY_SECONDS = 1
"""Retry delay if the verifier gives none."""
_STATUS_BY_CLASS: tuple[tuple[type[DraftwireError], int], ...] = (  # the first match counts
    (InvalidArgumentError, 400),
    (NotFoundError, 404),
    (MessageTooLargeError, 413),
    (AtCapacityError, 503),
    (ResourceExhaustedError, 503),
    (UnavailableError, 503),
    (RequestCancelledError, 503),
    (ModelMismatchError, 503),
    (FailedPreconditionError, 400),
    (DeadlineExceededError, 504),
    (UnimplementedError, 502),  # another service is at that address
    (UnauthenticatedError, 502),  # the gateway's own token, which is not the caller's fault
    (PermissionDeniedError, 502),
)
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_OVERLOADED = 503
UNSUPPORTED_PART = "unsupported_part"
"""Type of the validation error for a part of a message that is no text."""


class ErrorBody(BaseModel):
    """An error of a request."""

    message: str
    """Description of the error, in one sentence."""
    type: str
    """Kind of error: invalid_request_error, authentication_error, rate_limit_error, not_found_error, server_error."""
    param: str | None
    """The field of the request that is at fault, if any."""
    code: str | None
    """Name of the fault, for programs."""


class ErrorResponse(BaseModel):
    """The body of a response whose status is not 200."""

    error: ErrorBody


class GatewayError(Exception):
    """An error that is reported to the caller."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        """The error's type follows from its status. Message and param are truncated."""
        self.message = shortened(message, _MOST_MESSAGE)
        super().__init__(self.message)
        self.status = status
        self.param = None if param is None else shortened(param, _MOST_PARAM)
        self.code = code
        self.retry_after_seconds = retry_after_seconds

    @property
    def report(self) -> ErrorResponse:
        """The error as the caller gets it. Characters from the request that UTF-8 cannot encode are replaced."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        message, param = (text and text.encode(errors="replace").decode() for text in (self.message, self.param))
        return ErrorResponse(error=ErrorBody(message=message or "", type=kind, param=param, code=self.code))

    @property
    def body(self) -> bytes:
        """The error as JSON."""
        return self.report.model_dump_json().encode()

    def response(self) -> Response:
        """Returns the response that reports the error."""
        headers: dict[str, str] = {}
        if self.retry_after_seconds is not None:
            headers["retry-after"] = str(math.ceil(self.retry_after_seconds))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return Response(self.body, self.status, headers, "application/json")


def from_draftwire(error: DraftwireError, names: FieldNames = FIELD_NAMES) -> GatewayError:
    """Returns the caller's error for an error of the SDK. names: the request's names of the contract's fields."""
    status = next((status for kind, status in _STATUS_BY_CLASS if isinstance(error, kind)), 500)
    retry = error.retry_after_seconds
    if retry is None and status == _OVERLOADED:
        retry = RETRY_SECONDS
    param = names.param(error.fields[0]) if error.fields else None
    if isinstance(error, DrafterNotFoundError):
        param = "speculation.drafter"
    message = names.message(error)
    if isinstance(error, ContextExceededError) and "max_sequence_tokens" in error.metadata:
        # Clients such as litellm know a full context by this sentence of OpenAI's.
        message = f"{message}. This model's maximum context length is {error.metadata['max_sequence_tokens']} tokens."
    return GatewayError(message, status=status, param=param, code=_code(error), retry_after_seconds=retry)


def _code(error: DraftwireError) -> str | None:
    if isinstance(error, ContextExceededError):
        return "context_length_exceeded"
    return None if error.reason is None else str(error.reason).lower()


def from_validation(problem: Mapping[str, Any]) -> GatewayError:
    """Returns the caller's error for the first of pydantic's problems with a request."""
    location = problem["loc"][1:]  # without "body"
    kind = str(problem["type"])
    message = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = message.replace(" after validation", "")
    if not location:
        return GatewayError("the body must be a JSON object, sent as application/json", code="invalid_type")
    param = ""
    for part in location:
        if isinstance(part, str) and part.startswith("<"):  # the name of an alternative, which is none of a field
            continue
        param += f"[{part}]" if isinstance(part, int) else f".{part}" if param else str(part)
    if kind == "missing":
        code, message = "missing_required_parameter", "is required"
    elif kind in ("model_type", "model_attributes_type", "dict_type"):  # pydantic would name a class
        code, message = "invalid_type", "must be an object"
    elif kind == UNSUPPORTED_PART:
        code = "unsupported_parameter"
    else:
        code = "invalid_type" if kind.endswith(("_type", "_parsing")) else "invalid_value"
    return GatewayError(f"{param}: {message[:1].lower()}{message[1:]}", param=param, code=code)
