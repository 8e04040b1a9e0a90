"""Seconds as the contract has them."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration


def duration(seconds: float) -> Duration:
    """The message."""
    made = Duration()
    made.FromNanoseconds(round(seconds * 1e9))
    return made


def seconds_of(message: Duration) -> float:
    """The seconds of a message."""
    return message.seconds + message.nanos / 1e9
