"""Errors, from the status on the wire to the class."""

import copy
import pickle
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2

import draftwire
from draftwire import (
    AsyncClient,
    AtCapacityError,
    Client,
    ContextExceededError,
    DeadlineExceededError,
    Drafter,
    DrafterUnreachableError,
    DraftwireError,
    EmptyPromptError,
    ErrorReason,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    InvalidFieldError,
    MessageTooLargeError,
    NotFoundError,
    RequestCancelledError,
    UnavailableError,
)
from draftwire._types.from_message import read
from draftwire.errors import error_class, from_status
from draftwire.v1 import error_reason_pb2
from tests.harness.stand_ins.fake_verifier import FakeVerifier, drafter_message, rich_status
from tests.harness.waiting import PATIENCE

Code = grpc.StatusCode


def test_reasons_are_those_of_the_contract() -> None:
    published = {name.removeprefix("ERROR_REASON_") for name, _ in error_reason_pb2.ErrorReason.items()}
    assert set(ErrorReason) == published - {"UNSPECIFIED"}
    assert all(name == reason for name, reason in ErrorReason.__members__.items())


def test_every_error_class_is_exported() -> None:
    defined = {
        name
        for name, value in vars(draftwire.errors).items()
        if isinstance(value, type) and issubclass(value, DraftwireError)
    }
    assert defined <= set(draftwire.__all__)


@pytest.mark.parametrize("reason", list(ErrorReason))
def test_a_reason_alone_decides_the_class(reason: ErrorReason) -> None:
    in_band = {"UNKNOWN_SEQUENCE", "MALFORMED_PROPOSAL", "CREDIT_EXCEEDED", "OUT_OF_SYNC", "HANDSHAKE_EXPECTED"}
    made = error_class(Code.UNKNOWN, reason)
    assert (made is DraftwireError) == (reason in in_band)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (Code.INVALID_ARGUMENT, InvalidArgumentError),
        (Code.NOT_FOUND, NotFoundError),
        (Code.FAILED_PRECONDITION, FailedPreconditionError),
        (Code.UNAVAILABLE, UnavailableError),
        (Code.DEADLINE_EXCEEDED, DeadlineExceededError),
        (Code.CANCELLED, RequestCancelledError),
        (Code.INTERNAL, InternalError),
        (Code.DATA_LOSS, DraftwireError),
    ],
)
def test_without_a_reason_the_code_decides(code: grpc.StatusCode, expected: type[DraftwireError]) -> None:
    error = from_status(rich_status(code, "no"))
    assert type(error) is expected
    assert (error.code, error.reason, error.message) == (code, None, "no")


def test_reasons_newer_than_the_sdk() -> None:
    error = from_status(rich_status(Code.INVALID_ARGUMENT, "no", "BRAND_NEW"))
    assert type(error) is InvalidArgumentError
    assert error.reason == "BRAND_NEW"


def test_reasons_of_others_do_not_count() -> None:
    assert from_status(rich_status(Code.INTERNAL, "no", "AT_CAPACITY", domain="elsewhere")).reason is None


def test_details_arrive_over_the_wire(client: Client, verifier: FakeVerifier) -> None:
    verifier.failures.append(
        rich_status(Code.INVALID_ARGUMENT, "bad", "INVALID_FIELD", ("sampling.temperature", "max_tokens"))
    )
    with pytest.raises(InvalidFieldError) as caught:
        client.generate("x")
    error = caught.value
    assert error.fields == ("sampling.temperature", "max_tokens")
    assert error.field_violations[0].description == "is wrong"
    assert "(temperature: is wrong; max_tokens: is wrong)" in str(error)
    assert [v.parameter for v in error.field_violations] == ["temperature", ""]
    assert error.reason is ErrorReason.INVALID_FIELD
    assert error.metadata == {"build": "fake"}
    assert isinstance(error.raw, grpc.RpcError)
    assert isinstance(error.status, status_pb2.Status)
    assert len(error.status.details) == 2
    assert client.generate("x", max_tokens=2).token_ids


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
async def test_errors_are_copied_into_other_processes(verifier: FakeVerifier, copied: Any) -> None:
    verifier.fails_for["bad"] = rich_status(Code.INVALID_ARGUMENT, "text: is bad", "EMPTY_PROMPT", ("text",))
    with Client(verifier.address) as client, pytest.raises(EmptyPromptError) as caught:
        client.generate_batch(["a", "bad"], max_tokens=2)
    errors = [caught.value]
    async with AsyncClient(verifier.address) as asynchronous:
        with pytest.raises(EmptyPromptError) as caught:
            await asynchronous.generate_batch(["a", "bad"], max_tokens=2)
    for error in (*errors, caught.value):
        assert error.raw is not None
        made = copied(error)
        assert type(made) is EmptyPromptError
        assert (str(made), made.status, made.raw) == (str(error), error.status, None)
        assert (made.code, made.reason, made.field_violations) == (error.code, error.reason, error.field_violations)
        assert error.results is not None
        assert made.results == [error.results[0], made]


def test_retry_info(client: Client, verifier: FakeVerifier) -> None:
    verifier.failures.append(rich_status(Code.RESOURCE_EXHAUSTED, "full", "AT_CAPACITY", retry_after=1.5))
    with pytest.raises(AtCapacityError) as caught:
        client.model_info()
    assert caught.value.retry_after_seconds == 1.5
    assert verifier.calls == ["GetModelInfo"]


@pytest.mark.parametrize("seconds", [None, 1 << 62])
def test_details_that_cannot_be_read_are_left_out(client: Client, verifier: FakeVerifier, seconds: int | None) -> None:
    status = rich_status(Code.RESOURCE_EXHAUSTED, "full", "AT_CAPACITY")
    if seconds is None:
        status.details.add().Pack(error_details_pb2.BadRequest())
        status.details[-1].value = b"\xff\xff"
    else:
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=seconds)))
    verifier.failures.append(status)
    with pytest.raises(AtCapacityError, match="full") as caught:
        client.model_info()
    assert (caught.value.field_violations, caught.value.retry_after_seconds) == ((), None)


def test_a_drafters_error_that_cannot_be_read_does_not_hide_the_pool() -> None:
    message = drafter_message("good")
    message.last_error.CopyFrom(rich_status(Code.INTERNAL, "no", "INTERNAL"))
    message.last_error.details[0].value = b"\xff\xff"
    error = read(Drafter, message).last_error
    assert (type(error), str(error)) == (InternalError, "no")


def test_unary_calls_raise_typed_errors(client: Client, verifier: FakeVerifier) -> None:
    verifier.failures.append(rich_status(Code.INVALID_ARGUMENT, "long", "CONTEXT_EXCEEDED"))
    with pytest.raises(ContextExceededError, match="long"):
        client.tokenize("x")


def test_an_unreachable_drafter_is_not_an_unreachable_verifier(client: Client, verifier: FakeVerifier) -> None:
    verifier.failures.append(rich_status(Code.UNAVAILABLE, "gone", "DRAFTER_UNREACHABLE"))
    with pytest.raises(DrafterUnreachableError) as caught:
        client.drafters.attach("localhost:1")
    assert not isinstance(caught.value, UnavailableError)
    assert verifier.calls == ["AttachDrafter"]


def test_messages_beyond_the_limit_of_the_transport(client: Client) -> None:
    with pytest.raises(MessageTooLargeError) as caught:
        client.tokenize("x" * 5_000_000)
    assert caught.value.reason is ErrorReason.MESSAGE_TOO_LARGE


def test_deadlines(client: Client, verifier: FakeVerifier) -> None:
    verifier.hang_after = 0
    for seconds in (0.2, 2, 20):  # on a busy machine it may expire before the call has reached the verifier
        with pytest.raises(DeadlineExceededError):
            client.generate("x", timeout=seconds)
        if verifier.calls:
            break
    assert verifier.cancelled.wait(PATIENCE)
    remaining = verifier.remaining_seconds[0]
    assert remaining is not None
    assert remaining <= seconds


def test_no_verifier() -> None:
    from tests.sdk.conftest import QUICK

    with Client("127.0.0.1:1", retry=QUICK) as nobody, pytest.raises(UnavailableError):
        nobody.generate("x")
