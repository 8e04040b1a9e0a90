"""Where the time of a service's steps goes, as its GetModelInfo tells it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from draftwire.v1.step_times_pb2 import StepTimes


def step_times(steps: int, seconds: Mapping[str, float]) -> StepTimes:
    """The message. seconds: by part, named as its fields. To be called in the event loop, whose time is told, too."""
    times = StepTimes(steps=steps)
    for part, each in {**seconds, "event_loop": time.thread_time()}.items():
        getattr(times, part).FromNanoseconds(round(each * 1e9))
    return times
