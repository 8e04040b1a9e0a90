"""The deadline of a call."""

from __future__ import annotations

import time
from typing import Self

from draftwire._messages.option_types import number
from draftwire.errors import DeadlineExceededError, DraftwireError, ErrorReason


class Deadline(float):
    """A deadline as a time by ``time.monotonic``, with the timeout it came from."""

    seconds: float
    """The timeout as given by the caller."""

    @classmethod
    def after(cls, seconds: float) -> Self:
        """Returns the deadline of a call that begins now.

        Raises:
            TypeError: the timeout is not a number.
        """
        timeout = number("timeout", seconds)
        made = cls(time.monotonic() + timeout)
        made.seconds = timeout
        return made


def describe_deadline(error: DraftwireError, deadline: Deadline | None, done: str, last: DraftwireError | None) -> None:
    """Makes the error of a call whose deadline passed name the timeout; other errors are left unchanged.

    Args:
        error: the error of the call.
        deadline: the call's deadline.
        done: the call's progress, for example "after 90 tokens".
        last: the error of the previous attempt, if there was one.
    """
    if deadline is None or error.reason is not None or not isinstance(error, DeadlineExceededError):
        return
    error.reason = ErrorReason.DEADLINE_EXCEEDED
    error.message = _message(deadline, done, last)


def check_deadline(deadline: Deadline | None, done: str, last: DraftwireError) -> None:
    """Raises the error of a call whose deadline passed before its next attempt. gRPC would answer such an attempt with
    the state of the connection as often as with the deadline.

    Args:
        deadline: the call's deadline.
        done: the call's progress, for example "after 90 tokens".
        last: the error of the last attempt.

    Raises:
        DeadlineExceededError: the deadline has passed.
    """
    if deadline is not None and time.monotonic() >= deadline:
        message = _message(deadline, done, last)
        raise DeadlineExceededError(message, reason=ErrorReason.DEADLINE_EXCEEDED, raw=last.raw) from last


def _message(deadline: Deadline, done: str, last: DraftwireError | None) -> str:
    message = f"timeout of {deadline.seconds} s ran out {done}"
    return message if last is None else f"{message}: {last.message}"
