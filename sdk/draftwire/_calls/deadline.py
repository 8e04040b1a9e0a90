"""The deadline of a call."""

from __future__ import annotations

import time
from typing import Self

from draftwire._messages.option_types import number
from draftwire.errors import DeadlineExceededError, DraftwireError, ErrorReason


class Deadline(float):
    """A time, by ``time.monotonic``, that knows after how long it comes."""

    seconds: float
    """The timeout, as the caller gave it."""

    @classmethod
    def after(cls, seconds: float) -> Self:
        """Return the deadline of a call that begins now.

        Raises:
            TypeError: the timeout is no number.
        """
        timeout = number("timeout", seconds)
        made = cls(time.monotonic() + timeout)
        made.seconds = timeout
        return made


def describe_deadline(error: DraftwireError, deadline: Deadline | None, done: str, last: DraftwireError | None) -> None:
    """Have the error of a call whose own deadline passed say what ran out; other errors stay as they are.

    Args:
        error: what the call failed with.
        deadline: the call's.
        done: how far it came: "after 90 tokens".
        last: what its attempt before failed with, if it did.
    """
    if deadline is None or error.reason is not None or not isinstance(error, DeadlineExceededError):
        return
    error.reason = ErrorReason.DEADLINE_EXCEEDED
    error.message = f"timeout of {deadline.seconds} s ran out {done}"
    if last is not None:
        error.message += f": {last.message}"
