"""Conversion between seconds and the contract's durations."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration


def duration(seconds: float) -> Duration:
    """Returns the message for a number of seconds."""
    made = Duration()
    made.FromNanoseconds(round(seconds * 1e9))
    return made


def seconds_of(message: Duration) -> float:
    """Returns the seconds of a message."""
    return message.seconds + message.nanos / 1e9
