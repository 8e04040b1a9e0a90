"""Typed errors. Every failed call raises a ``DraftwireError``; the published reason determines its class."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

import grpc
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

if TYPE_CHECKING:
    from draftwire._types.generation import Generation

DOMAIN = "draftwire"
"""``google.rpc.ErrorInfo.domain`` of the reasons below."""

_STATUS_KEY = "grpc-status-details-bin"


class ErrorReason(StrEnum):
    """Published error reasons (``draftwire.v1.ErrorReason`` without its prefix)."""

    INVALID_FIELD = "INVALID_FIELD"
    EMPTY_PROMPT = "EMPTY_PROMPT"
    CONTEXT_EXCEEDED = "CONTEXT_EXCEEDED"
    TOKEN_OUT_OF_RANGE = "TOKEN_OUT_OF_RANGE"
    DRAFTER_NOT_FOUND = "DRAFTER_NOT_FOUND"
    DRAFTER_EXISTS = "DRAFTER_EXISTS"
    DRAFTER_UNREACHABLE = "DRAFTER_UNREACHABLE"
    TOKENIZER_MISMATCH = "TOKENIZER_MISMATCH"
    PROTOCOL_MISMATCH = "PROTOCOL_MISMATCH"
    UNSUPPORTED_DRAFTER = "UNSUPPORTED_DRAFTER"
    UNKNOWN_SEQUENCE = "UNKNOWN_SEQUENCE"
    MALFORMED_PROPOSAL = "MALFORMED_PROPOSAL"
    CREDIT_EXCEEDED = "CREDIT_EXCEEDED"
    OUT_OF_SYNC = "OUT_OF_SYNC"
    AT_CAPACITY = "AT_CAPACITY"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    HANDSHAKE_EXPECTED = "HANDSHAKE_EXPECTED"
    INTERNAL = "INTERNAL"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    ROLLOUT_NOT_FOUND = "ROLLOUT_NOT_FOUND"
    BUSY = "BUSY"
    IDLE = "IDLE"
    NOT_ENABLED = "NOT_ENABLED"
    NOTHING_ALLOWED = "NOTHING_ALLOWED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    ROLE_MISSING = "ROLE_MISSING"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One invalid field of a request."""

    field: str
    """Path of the field in the request message, for example ``sampling.temperature``."""
    description: str
    """Description of the fault."""
    parameter: str = dataclasses.field(default="", compare=False)
    """The SDK parameter for this field, for example ``temperature``, as named in the error's message; empty if both
    have the same name."""


class DraftwireError(Exception):
    """A failed call. Base class of all errors below; raised itself only for a code and reason without a class."""

    default_code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN
    _by_code: ClassVar[dict[grpc.StatusCode, type[DraftwireError]]] = {}
    _by_reason: ClassVar[dict[str, type[DraftwireError]]] = {}

    def __init_subclass__(cls, code: grpc.StatusCode | None = None, reason: ErrorReason | None = None) -> None:
        """Makes a class that of the errors with a code, or with a reason, which counts more."""
        super().__init_subclass__()
        if code is not None:
            cls.default_code = code
            cls._by_code[code] = cls
        if reason is not None:
            cls._by_reason[reason] = cls

    message: str
    """Description of the failure, in one sentence."""
    code: grpc.StatusCode
    """The canonical gRPC status code."""
    reason: ErrorReason | str | None
    """The published reason; a plain string if it is newer than this SDK; None if none was given."""
    field_violations: tuple[FieldViolation, ...]
    """The invalid fields of the request, if any."""
    retry_after_seconds: float | None
    """Seconds to wait before a retry, if the service gave them."""
    metadata: dict[str, str]
    """Further facts about the error (``google.rpc.ErrorInfo.metadata``)."""
    status: status_pb2.Status
    """The complete status with its details."""
    raw: grpc.RpcError | None
    """The gRPC library's error; None if the SDK itself found the fault, and in a copy."""
    partial: Generation | None
    """Output of a generation request up to its failure; None if it had not begun. Its ``finish_reason`` is
    ``"deadline"`` after a timeout and ``"error"`` otherwise. Its ``usage`` has the client's times and no cached tokens,
    and its ``speculation`` no counts, because verifiers report them at the end."""
    results: Sequence[Generation | DraftwireError] | None
    """For a failed batch: the result or the error of each prompt, in order."""

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode | None = None,
        reason: ErrorReason | str | None = None,
        field_violations: tuple[FieldViolation, ...] = (),
        retry_after_seconds: float | None = None,
        metadata: dict[str, str] | None = None,
        status: status_pb2.Status | None = None,
        raw: grpc.RpcError | None = None,
    ) -> None:
        """Creates an error. Arguments left out are derived from the class."""
        super().__init__(message)
        self.message = message
        self.code = code if code is not None else self.default_code
        self.reason = reason
        self.field_violations = field_violations
        self.retry_after_seconds = retry_after_seconds
        self.metadata = metadata or {}
        self.status = status if status is not None else status_pb2.Status(code=self.code.value[0], message=message)
        self.raw = raw
        self.partial = None
        self.results = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns what a copy, also one in another process, is made of: all but ``raw``, which is bound to its call."""
        return type(self), self.args, {**self.__dict__, "raw": None}

    @property
    def details(self) -> str:
        """The original message of the service or the gRPC library; ``message`` may be clearer."""
        details: str = self.status.message
        return details

    @property
    def fields(self) -> tuple[str, ...]:
        """Paths of the invalid fields."""
        return tuple(violation.field for violation in self.field_violations)

    def __str__(self) -> str:
        """Returns the message, followed by the invalid fields that it does not name."""
        named = [(v.parameter or v.field, v.description) for v in self.field_violations]
        missing = [f"{name}: {description}" for name, description in named if name not in self.message]
        return f"{self.message} ({'; '.join(missing)})" if missing else self.message


class InvalidArgumentError(DraftwireError, code=grpc.StatusCode.INVALID_ARGUMENT):
    """The request is invalid, whatever the state of the service."""


class InvalidFieldError(InvalidArgumentError, reason=ErrorReason.INVALID_FIELD):
    """A field of the request has an invalid value; ``fields`` names it."""


class EmptyPromptError(InvalidArgumentError, reason=ErrorReason.EMPTY_PROMPT):
    """The prompt has no tokens."""


class ContextExceededError(InvalidArgumentError, reason=ErrorReason.CONTEXT_EXCEEDED):
    """The prompt, or prompt and max_tokens together, exceed the target's context."""


class TokenOutOfRangeError(InvalidArgumentError, reason=ErrorReason.TOKEN_OUT_OF_RANGE):
    """A token id is not below the target's vocabulary size."""


class NothingAllowedError(InvalidArgumentError, reason=ErrorReason.NOTHING_ALLOWED):
    """The request's own constraints (allowed and banned tokens, bad words, structured output) left no token at a
    position."""


class UnsupportedDrafterError(InvalidArgumentError, reason=ErrorReason.UNSUPPORTED_DRAFTER):
    """The verifier does not support drafter addresses of this form."""


class NotFoundError(DraftwireError, code=grpc.StatusCode.NOT_FOUND):
    """Something named in the request does not exist."""


class DrafterNotFoundError(NotFoundError, reason=ErrorReason.DRAFTER_NOT_FOUND):
    """No drafter of this name is attached."""


class RolloutNotFoundError(NotFoundError, reason=ErrorReason.ROLLOUT_NOT_FOUND):
    """No rollout of this drafter is running."""


class DrafterExistsError(DraftwireError, reason=ErrorReason.DRAFTER_EXISTS):
    """A drafter of this name is already attached, at another address."""

    default_code = grpc.StatusCode.ALREADY_EXISTS


class DrafterUnreachableError(DraftwireError, reason=ErrorReason.DRAFTER_UNREACHABLE):
    """The verifier could not reach the drafter."""

    default_code = grpc.StatusCode.UNAVAILABLE


class FailedPreconditionError(DraftwireError, code=grpc.StatusCode.FAILED_PRECONDITION):
    """The request does not fit the state of the service."""


class TokenizerMismatchError(FailedPreconditionError, reason=ErrorReason.TOKENIZER_MISMATCH):
    """The drafter's tokenizer is not the target's."""


class ProtocolMismatchError(FailedPreconditionError, reason=ErrorReason.PROTOCOL_MISMATCH):
    """The two sides share no protocol revision."""


class BusyError(FailedPreconditionError, reason=ErrorReason.BUSY):
    """Another change of the same kind is in progress: a model load, or a swap or rollout of the same drafter."""


class NotEnabledError(FailedPreconditionError, reason=ErrorReason.NOT_ENABLED):
    """The service was not started with the setting that allows this call; the message names it."""


class ModelMismatchError(FailedPreconditionError):
    """A request was interrupted, and the next verifier has another target model, which would continue differently.

    Detected by the client itself.
    """


class NumericsMismatchError(ModelMismatchError):
    """A request was interrupted, and no reachable verifier has the numerics of the one that began it.

    The others serve the same target model with other kernels, libraries or processors, so the last bits of their
    logits can differ, and with them the rest of the text. Detected by the client itself; see
    ``RetryPolicy.on_other_numerics``.
    """


class UnauthenticatedError(DraftwireError, code=grpc.StatusCode.UNAUTHENTICATED, reason=ErrorReason.UNAUTHENTICATED):
    """The service requires a token, and the call had none or an unknown one."""


class PermissionDeniedError(DraftwireError, code=grpc.StatusCode.PERMISSION_DENIED, reason=ErrorReason.ROLE_MISSING):
    """The token is known but lacks the role that the call requires; the message names the role."""


class ResourceExhaustedError(DraftwireError, code=grpc.StatusCode.RESOURCE_EXHAUSTED):
    """A limit of the service has been reached."""


class AtCapacityError(ResourceExhaustedError, reason=ErrorReason.AT_CAPACITY):
    """The service is full; try again after ``retry_after_seconds``."""


class MessageTooLargeError(ResourceExhaustedError, reason=ErrorReason.MESSAGE_TOO_LARGE):
    """A message is larger than the service's limit."""


class UnavailableError(DraftwireError, code=grpc.StatusCode.UNAVAILABLE):
    """The service cannot be reached, or the connection was lost. Raised after the client's own retries."""


class ShuttingDownError(UnavailableError, reason=ErrorReason.SHUTTING_DOWN):
    """The service is shutting down. Raised after the client's own retries."""


class DeadlineExceededError(
    DraftwireError, code=grpc.StatusCode.DEADLINE_EXCEEDED, reason=ErrorReason.DEADLINE_EXCEEDED
):
    """The call did not end within its timeout. For generation, ``partial`` has the output so far."""


class IdleError(DeadlineExceededError, reason=ErrorReason.IDLE):
    """The stream was idle for longer than the service keeps its state."""


class RequestCancelledError(DraftwireError, code=grpc.StatusCode.CANCELLED):
    """The call was cancelled, by ``close`` from elsewhere or by the service."""


class UnimplementedError(DraftwireError, code=grpc.StatusCode.UNIMPLEMENTED):
    """The server at the address does not have this call: it is another service, or an older one."""


class InternalError(DraftwireError, code=grpc.StatusCode.INTERNAL, reason=ErrorReason.INTERNAL):
    """A fault of the service itself; its log has the cause."""


_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def error_class(code: grpc.StatusCode, reason: str | None) -> type[DraftwireError]:
    """Returns the class for a reason, or for the code if the reason has none."""
    by_reason = DraftwireError._by_reason.get(reason or "")
    return by_reason or DraftwireError._by_code.get(code, DraftwireError)


def from_status(status: status_pb2.Status, *, raw: grpc.RpcError | None = None) -> DraftwireError:
    """Returns the error for a ``google.rpc.Status`` without raising it."""
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    reason: ErrorReason | str | None = None
    metadata: dict[str, str] = {}
    violations: list[FieldViolation] = []
    retry_after: float | None = None
    for detail in status.details:
        info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        try:  # in the error of a drafter, which its verifier passes on, may be anything
            if detail.Unpack(info) and info.domain == DOMAIN:
                reason, metadata = _reason(info.reason), dict(info.metadata)
            elif detail.Unpack(bad):
                violations += [FieldViolation(v.field, v.description) for v in bad.field_violations]
            elif detail.Unpack(retry):
                retry_after = retry.retry_delay.ToTimedelta().total_seconds()
        except (DecodeError, OverflowError):
            continue
    if reason is None and code is grpc.StatusCode.RESOURCE_EXHAUSTED and "message larger than max" in status.message:
        reason = ErrorReason.MESSAGE_TOO_LARGE  # found by the gRPC library, below the service
    return error_class(code, reason)(
        status.message or code.value[1],
        code=code,
        reason=reason,
        field_violations=tuple(violations),
        retry_after_seconds=retry_after,
        metadata=metadata,
        status=status,
        raw=raw,
    )


def from_rpc_error(error: grpc.RpcError) -> DraftwireError:
    """Returns the typed error for an error of the gRPC library, sync or asyncio, without raising it."""
    call: Any = error  # both kinds have code(), details() and trailing_metadata(); their base class has none
    code = call.code() or grpc.StatusCode.UNKNOWN
    status = status_pb2.Status(code=code.value[0], message=call.details() or "")
    for key, value in call.trailing_metadata() or ():
        if key == _STATUS_KEY:
            try:
                rich = status_pb2.Status.FromString(value)
            except DecodeError:
                continue
            if rich.code == status.code:
                status = rich
    return from_status(status, raw=error)


def invalid_field(field: str, description: str) -> InvalidFieldError:
    """Returns the error that the service would return for a field, for values that cannot be encoded."""
    violation = FieldViolation(field, description)
    details = error_details_pb2.BadRequest(
        field_violations=[error_details_pb2.BadRequest.FieldViolation(field=field, description=description)]
    )
    info = error_details_pb2.ErrorInfo(reason=ErrorReason.INVALID_FIELD, domain=DOMAIN)
    message = f"{field}: {description}"
    status = status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message=message)
    for detail in (info, details):
        status.details.add().Pack(detail)
    return InvalidFieldError(message, reason=ErrorReason.INVALID_FIELD, field_violations=(violation,), status=status)


def _reason(name: str) -> ErrorReason | str:
    """Returns the reason for a name, which may be newer than this SDK."""
    name = name.removeprefix("ERROR_REASON_")
    return ErrorReason(name) if name in ErrorReason.__members__ else name
