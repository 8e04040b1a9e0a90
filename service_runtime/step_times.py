"""Where the time of a service's steps goes, as its GetModelInfo tells it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from draftwire.v1.step_times_pb2 import StepTimes
from service_runtime.duration import duration, seconds_of


def step_times(steps: int, seconds: Mapping[str, float]) -> StepTimes:
    """The message. seconds: by part, named as its fields. To be called in the event loop, whose time is told, too."""
    by_part = {part: duration(each) for part, each in seconds.items()}
    return StepTimes(steps=steps, event_loop=duration(time.thread_time()), **by_part)


def seconds_by_part(times: StepTimes) -> dict[str, float]:
    """The seconds in such a message, by part; the event loop is none."""
    parts = [field.name for field in times.DESCRIPTOR.fields if field.name not in ("steps", "event_loop")]
    return {part: seconds_of(getattr(times, part)) for part in parts}
