"""The time for which a drafter may gather its proposals while the verifier computes a step."""

from __future__ import annotations

import math
from collections.abc import Collection

from draftwire_core.pool.standing.drafter_stats import DrafterStats
from draftwire_core.runtime.rpc.handshake import CAPABILITY_GATHERING, CAPABILITY_PING

_SURE = 0.9
"""Share of a step's expected time that nearly every step takes: nodes that come after its end wait for the next one."""
_LEAST_STEPS = 2.0
"""Drafting steps that the time must be long enough for: one message must save more than the notice costs."""
_UNTOLD = 16
"""Every so many steps the drafter is not notified, so that its pace is measured from message to message."""


class Gathering:
    """Decides which steps a drafter is notified of.

    A step verifies only nodes that were there when it began. Reading each message of a drafter takes the event loop a
    quarter of a millisecond next to the step, so the nodes drafted meanwhile come in one.
    """

    def __init__(self, capabilities: Collection[str]) -> None:
        """capabilities: of the drafter's hello."""
        self._able = CAPABILITY_GATHERING in capabilities and CAPABILITY_PING in capabilities
        self._steps = 0
        self.until = -math.inf
        """Time until which the drafter may gather, by the caller's clock."""

    def begin(self, step_seconds: float, now: float, stats: DrafterStats) -> float:
        """Returns the seconds of the StepBegun for a step that begins; 0 if the drafter gets none.

        step_seconds: the step's expected time. stats: the drafter's measured times.
        """
        seconds = _SURE * step_seconds - stats.round_trip_seconds
        if not self._able or seconds < _LEAST_STEPS * stats.step_seconds or seconds <= 0:
            return 0.0
        self._steps += 1
        if self._steps % _UNTOLD == 0:
            return 0.0
        self.until = now + seconds
        return seconds
