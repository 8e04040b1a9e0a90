"""When the next proposal of a drafter is to be expected."""

from __future__ import annotations

_WEIGHT = 0.2
"""Weight of a new measurement in the running averages."""


class DrafterTiming:
    """Running averages of one drafter's times, as the verifier sees them. All times in seconds."""

    def __init__(self, response: float = 0.01, interval: float = 0.005):
        self.response = response
        """From a verdict that left an empty tree to the first proposal that builds on it."""
        self.interval = interval
        """From one proposal to the next."""
        self._asked_at: float | None = None
        self._last_arrival: float | None = None

    def asked(self, now: float) -> None:
        """A verdict left at least one sequence with an empty tree."""
        if self._asked_at is not None:
            # Nothing has come since the last one: the response takes at least that long.
            self.response += _WEIGHT * max(0.0, now - self._asked_at - self.response)
        self._asked_at = now

    def idle(self) -> None:
        """No sequence is left to draft for: the time until the next proposal says nothing about the drafter."""
        self._asked_at = None
        self._last_arrival = None

    def arrived(self, now: float, answers: bool) -> None:
        """A proposal came; `answers` says whether it builds on the latest verdict of its sequence."""
        if self._asked_at is not None:
            if not answers:
                self._last_arrival = now
                return
            self.response += _WEIGHT * (now - self._asked_at - self.response)
            self._asked_at = None
        elif self._last_arrival is not None:
            # A pause longer than a response is no drafting pace: the drafter had nothing left to draft.
            pause = min(now - self._last_arrival, max(self.response, self.interval))
            self.interval += _WEIGHT * (pause - self.interval)
        self._last_arrival = now

    def expected_wait(self, now: float) -> float | None:
        """Seconds until the next proposal, None if nothing is known to be under way.

        A proposal that is overdue is expected to take as long again as it is late already.
        """
        if self._asked_at is not None:
            due = self._asked_at + self.response
        elif self._last_arrival is not None:
            due = self._last_arrival + self.interval
        else:
            return None
        return due - now if now < due else (now - due) + 0.25 * self.interval
