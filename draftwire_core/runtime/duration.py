"""Durations of the contract, and the times of a service's steps as GetModelInfo reports them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from google.protobuf.duration_pb2 import Duration

from draftwire.v1.step_times_pb2 import StepTimes


def duration(seconds: float) -> Duration:
    """Returns the message for a number of seconds."""
    made = Duration()
    made.FromNanoseconds(round(seconds * 1e9))
    return made


def seconds_of(message: Duration) -> float:
    """Returns the seconds of a message."""
    return message.seconds + message.nanos / 1e9


_NO_PARTS = ("steps", "event_loop", "cpu_around_forward")


def step_times(steps: int, seconds: Mapping[str, float], cpu_around_forward: float) -> StepTimes:
    """Returns the message; called in the event loop, whose time it includes. seconds: by part, named as the fields."""
    by_part = {part: duration(each) for part, each in seconds.items()}
    return StepTimes(
        steps=steps,
        event_loop=duration(time.thread_time()),
        cpu_around_forward=duration(cpu_around_forward),
        **by_part,
    )


def seconds_by_part(times: StepTimes) -> dict[str, float]:
    """Returns the seconds in such a message by part, CPU times excluded."""
    parts = [field.name for field in times.DESCRIPTOR.fields if field.name not in _NO_PARTS]
    return {part: seconds_of(getattr(times, part)) for part in parts}
