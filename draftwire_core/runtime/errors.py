"""Errors that services send to their clients: a canonical code, a published reason, and google.rpc details."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from draftwire._types.quoting import shortened
from draftwire.v1 import error_reason_pb2
from draftwire.v1.error_reason_pb2 import ErrorReason

DOMAIN = "draftwire"
"""ErrorInfo.domain of every error."""
_MOST_MESSAGE, _MOST_FIELD, _MOST_VIOLATIONS, _MOST_OF_VIOLATIONS = 1000, 200, 16, 2400
"""Limits on an error: bytes of its message, and of a field's path or a value of the metadata; number of violations, and
bytes of them all. These texts may repeat parts of the request, and travel in the call's trailers: encoded, which makes
bytes beyond ASCII three each, and a client that gets more than 8 KiB sees that as the reason instead."""
_REASON_PREFIX = "ERROR_REASON_"


@dataclass(frozen=True)
class FieldViolation:
    """A field of a request that is out of range."""

    field: str
    """Path of the field, for example sampling.top_p."""
    description: str
    """The fault of the field, and the valid values."""


class ServiceError(Exception):
    """An error with everything a client needs to act on it. Handlers raise it; the interceptor sends it.

    `retry_after_seconds` adds RetryInfo; a FAILED_PRECONDITION carries PreconditionFailure with the reason as its type;
    `metadata` goes to ErrorInfo. Long texts are truncated.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: ErrorReason,
        message: str,
        *,
        field_violations: Sequence[FieldViolation] = (),
        retry_after_seconds: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.message = _cut(message, _MOST_MESSAGE)
        super().__init__(self.message)
        self.code = code
        self.reason = reason
        named = field_violations[:_MOST_VIOLATIONS]
        share = _MOST_OF_VIOLATIONS // max(1, len(named))
        self.field_violations = tuple(
            FieldViolation(
                _cut(each.field, min(_MOST_FIELD, share // 3)),
                _cut(each.description, min(_MOST_MESSAGE, 2 * share // 3)),
            )
            for each in named
        )
        self.retry_after_seconds = retry_after_seconds
        self.metadata = {name: _cut(value, _MOST_FIELD) for name, value in (metadata or {}).items()}

    @property
    def reason_name(self) -> str:
        """Name of the reason in ErrorInfo, without the enum's prefix."""
        return error_reason_pb2.ErrorReason.Name(self.reason).removeprefix(_REASON_PREFIX)

    def to_status(self) -> status_pb2.Status:
        """Returns the error as google.rpc.Status, for the end of a call or for a SequenceError inside one."""
        number: int = self.code.value[0]
        status = status_pb2.Status(code=number, message=self.message)
        for detail in self._details():
            status.details.add().Pack(detail)
        return status

    def _details(self) -> list[Message]:
        details: list[Message] = [
            error_details_pb2.ErrorInfo(reason=self.reason_name, domain=DOMAIN, metadata=self.metadata)
        ]
        if self.field_violations:
            bad_request = error_details_pb2.BadRequest()
            for violation in self.field_violations:
                bad_request.field_violations.add(field=violation.field, description=violation.description)
            details.append(bad_request)
        if self.code is grpc.StatusCode.FAILED_PRECONDITION:
            failure = error_details_pb2.PreconditionFailure()
            failure.violations.add(type=self.reason_name, description=self.message)
            details.append(failure)
        if self.retry_after_seconds is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromNanoseconds(round(self.retry_after_seconds * 1e9))
            details.append(retry)
        return details


def _cut(text: str, most: int) -> str:
    """Returns a text shortened to at most so many bytes."""
    cuts = (shortened(text, most // size) for size in (1, 2, 3, 4))  # characters have up to four bytes
    return next(each for each in cuts if len(each.encode(errors="replace")) <= most)


async def abort_call(context: "grpc.aio.ServicerContext[Any, Any]", error: ServiceError) -> NoReturn:
    """Ends a call with an error. Raises grpc.aio.AbortError, as the context's own abort does."""
    status = rpc_status.to_status(error.to_status())
    await context.abort(status.code, status.details, status.trailing_metadata)


def invalid_field(field: str, description: str) -> ServiceError:
    """Returns INVALID_ARGUMENT for a field of the request that is out of range."""
    return invalid_fields([FieldViolation(field, description)])


def refused_field(reason: ErrorReason, field: str, description: str, **metadata: str) -> ServiceError:
    """Returns INVALID_ARGUMENT for a field of the request, with a reason of its own. metadata: further facts for
    programs."""
    return ServiceError(
        grpc.StatusCode.INVALID_ARGUMENT,
        reason,
        f"{field}: {description}",
        field_violations=[FieldViolation(field, description)],
        metadata=metadata,
    )


def invalid_fields(violations: Sequence[FieldViolation]) -> ServiceError:
    """Returns INVALID_ARGUMENT for several fields, at least one, so that a client sees every problem."""
    named = violations[:_MOST_VIOLATIONS]
    message = "; ".join(
        f"{shortened(each.field, _MOST_FIELD)}: {shortened(each.description, _MOST_MESSAGE)}" for each in named
    )
    return ServiceError(
        grpc.StatusCode.INVALID_ARGUMENT,
        ErrorReason.ERROR_REASON_INVALID_FIELD,
        message,
        field_violations=violations,
    )


def failed_precondition(reason: ErrorReason, message: str, **metadata: str) -> ServiceError:
    """Returns FAILED_PRECONDITION: the two sides or their states do not match."""
    return ServiceError(grpc.StatusCode.FAILED_PRECONDITION, reason, message, metadata=metadata)


def not_found(reason: ErrorReason, message: str) -> ServiceError:
    """Returns NOT_FOUND: the request names something that does not exist."""
    return ServiceError(grpc.StatusCode.NOT_FOUND, reason, message)


def at_capacity(message: str, retry_after_seconds: float) -> ServiceError:
    """Returns RESOURCE_EXHAUSTED: there is no room now; RetryInfo says when to try again."""
    return ServiceError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        ErrorReason.ERROR_REASON_AT_CAPACITY,
        message,
        retry_after_seconds=retry_after_seconds,
    )


def message_too_large(size: int, limit: int) -> ServiceError:
    """Returns RESOURCE_EXHAUSTED for a message of `size` bytes that exceeds `limit`."""
    return ServiceError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        ErrorReason.ERROR_REASON_MESSAGE_TOO_LARGE,
        f"the message has {size} bytes; the limit is {limit}",
        metadata={"size": str(size), "limit": str(limit)},
    )


def shutting_down() -> ServiceError:
    """Returns UNAVAILABLE: the service is ending; another one may serve the request."""
    return ServiceError(
        grpc.StatusCode.UNAVAILABLE, ErrorReason.ERROR_REASON_SHUTTING_DOWN, "the service is shutting down"
    )


def internal(incident: str) -> ServiceError:
    """Returns INTERNAL: a fault of the service, whose log has the cause under the incident's id."""
    return ServiceError(
        grpc.StatusCode.INTERNAL,
        ErrorReason.ERROR_REASON_INTERNAL,
        f"internal error; the service's log has the cause under incident {incident}",
        metadata={"incident": incident},
    )
