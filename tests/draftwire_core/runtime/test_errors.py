import base64
import string
from typing import cast
from urllib.parse import quote

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from draftwire.v1 import error_reason_pb2
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.runtime import errors


def details(status: status_pb2.Status) -> dict[str, Message]:
    found: dict[str, Message] = {}
    for packed in status.details:
        message = getattr(error_details_pb2, packed.TypeName().rpartition(".")[2])()
        assert packed.Unpack(message)
        found[type(message).__name__] = message
    return found


def test_an_invalid_field_is_named() -> None:
    status = errors.invalid_field("sampling.top_p", "must be in (0, 1], got 2").to_status()
    assert status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert status.message == "sampling.top_p: must be in (0, 1], got 2"
    found = details(status)
    assert set(found) == {"ErrorInfo", "BadRequest"}
    info, bad_request = found["ErrorInfo"], found["BadRequest"]
    assert isinstance(info, error_details_pb2.ErrorInfo)
    assert (info.domain, info.reason) == ("draftwire", "INVALID_FIELD")
    assert isinstance(bad_request, error_details_pb2.BadRequest)
    assert [(v.field, v.description) for v in bad_request.field_violations] == [
        ("sampling.top_p", "must be in (0, 1], got 2")
    ]


def test_what_a_request_said_is_cut() -> None:
    """Errors travel in a call's trailers, whose size is limited."""
    name = "x" * 4_000_000
    violations = [errors.FieldViolation(f"labels[{name}]", f"is {name}")] * 1000
    status = errors.invalid_fields(violations).to_status()
    assert status.message.startswith("labels[xxx") and "..." in status.message
    assert status.ByteSize() < 30_000
    assert errors.not_found(ErrorReason.ERROR_REASON_DRAFTER_NOT_FOUND, f"no drafter {name}!").message.endswith("x!")


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\u65e5", "\U0001f40d"])
@pytest.mark.parametrize("number", [1, 2, 16])
def test_trailers_are_not_too_large_for_clients(letter: str, number: int) -> None:
    """gRPC refuses some above 8 KiB and all above 16, and the call then fails with RESOURCE_EXHAUSTED."""
    violations = [errors.FieldViolation(f"labels[{letter * 2000}]", letter * 2000)] * number
    for error in (
        errors.invalid_fields(violations),
        errors.failed_precondition(
            ErrorReason.ERROR_REASON_TOKENIZER_MISMATCH, letter * 2000, other_model=letter * 2000
        ),
    ):
        status = error.to_status()
        message = quote(status.message, safe=string.printable)
        assert len(message) + len(base64.b64encode(status.SerializeToString())) < 7500
        assert letter in status.message and "..." in status.message


def test_several_fields_are_named_at_once() -> None:
    violations = [errors.FieldViolation("a", "is bad"), errors.FieldViolation("b", "is worse")]
    error = errors.invalid_fields(violations)
    assert str(error) == "a: is bad; b: is worse"
    assert error.field_violations == tuple(violations)


def test_capacity_says_when_to_try_again() -> None:
    found = details(errors.at_capacity("64 sequences run already", retry_after_seconds=1.25).to_status())
    retry = found["RetryInfo"]
    assert isinstance(retry, error_details_pb2.RetryInfo)
    assert (retry.retry_delay.seconds, retry.retry_delay.nanos) == (1, 250_000_000)


def test_a_failed_precondition_says_which() -> None:
    error = errors.failed_precondition(
        ErrorReason.ERROR_REASON_TOKENIZER_MISMATCH, "target aa, draft bb", target="aa", draft="bb"
    )
    found = details(error.to_status())
    failure, info = found["PreconditionFailure"], found["ErrorInfo"]
    assert isinstance(failure, error_details_pb2.PreconditionFailure)
    assert [(v.type, v.description) for v in failure.violations] == [("TOKENIZER_MISMATCH", "target aa, draft bb")]
    assert isinstance(info, error_details_pb2.ErrorInfo)
    assert dict(info.metadata) == {"target": "aa", "draft": "bb"}


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (errors.shutting_down(), grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN"),
        (errors.internal("abc"), grpc.StatusCode.INTERNAL, "INTERNAL"),
        (errors.message_too_large(9, 8), grpc.StatusCode.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE"),
        (
            errors.not_found(ErrorReason.ERROR_REASON_DRAFTER_NOT_FOUND, "no drafter x"),
            grpc.StatusCode.NOT_FOUND,
            "DRAFTER_NOT_FOUND",
        ),
    ],
)
def test_code_and_reason(error: errors.ServiceError, code: grpc.StatusCode, reason: str) -> None:
    assert (error.code, error.reason_name) == (code, reason)
    info = details(error.to_status())["ErrorInfo"]
    assert isinstance(info, error_details_pb2.ErrorInfo)
    assert info.reason == reason


def test_every_published_reason_has_a_name_without_prefix() -> None:
    for number in error_reason_pb2.ErrorReason.values():
        name = errors.ServiceError(grpc.StatusCode.INTERNAL, cast(ErrorReason, number), "x").reason_name
        assert name and not name.startswith("ERROR_REASON")
