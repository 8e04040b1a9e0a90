"""When the next proposal of a drafter is to be expected. All times in seconds."""

from __future__ import annotations

from collections import deque

_WEIGHT = 0.2
"""Weight of a new measurement in the running averages."""
_OUTLIER = 4.0
"""Measurements beyond this multiple of the average count as this multiple: a drafter that was briefly held up, or had
nothing to draft, says little about its pace."""


class DrafterTiming:
    """Running averages of one drafter's times, as the verifier sees them."""

    def __init__(self, response: float = 0.01, interval: float = 0.005):
        self.response = response
        """From a verdict that left an empty tree to the first proposal that builds on it."""
        self.interval = interval
        """From one proposal for a sequence to the next."""
        self.rests = False
        """Whether it is told of no verdicts for now, so that it owes no answers."""

    def count_response(self, seconds: float) -> None:
        """Take in a measured response."""
        self.response = _smoothed(self.response, seconds)

    def count_interval(self, seconds: float) -> None:
        """Take in a measured interval."""
        self.interval = _smoothed(self.interval, seconds)


class ProposalClock:
    """Times one drafter's proposals for one sequence, for the averages and with them.

    What counts is when a proposal arrived, whatever the verifier was at, and which verdict it answers, whatever has
    been committed since. So a drafter is measured also while nobody waits for it, and one that has become faster is
    found out.
    """

    def __init__(self, timing: DrafterTiming):
        """timing: the drafter's averages over all sequences."""
        self._timing = timing
        # Committed length and when it was asked, oldest first: verdicts that left an empty tree and that it has not
        # answered yet.
        self._asked: deque[tuple[int, float]] = deque()
        self._last_arrival: float | None = None
        self._measured_from = 0
        """Committed length above which verdicts were left to it alone: until its first proposal it reads the prompt, or
        what was committed while it rested, and that time is no response."""
        self._untold = False
        """Whether there were verdicts while the drafter rested."""

    def restart(self) -> None:
        """Forget what was asked and what came: the next proposal is as the first."""
        self._asked.clear()
        self._last_arrival = None
        self._untold = False

    def asked(self, committed_length: int, now: float) -> None:
        """A verdict left an empty tree."""
        if self._timing.rests:
            self._untold = True
            return
        if self._untold:
            self.restart()
        self._asked.append((committed_length, now))

    def arrived(self, committed_length: int, at: float) -> None:
        """A proposal that builds on `committed_length` tokens came."""
        latest = self._asked[-1][0] if self._asked else 0
        answered: float | None = None
        while self._asked and self._asked[0][0] <= committed_length:
            length, asked = self._asked.popleft()
            answered = asked if length == committed_length else None
        if self._last_arrival is None:
            self._measured_from = latest
        elif answered is None:
            self._timing.count_interval(at - self._last_arrival)
        elif committed_length > self._measured_from:
            self._timing.count_response(at - answered)
        self._last_arrival = at

    def expected_wait(self, now: float) -> float | None:
        """Seconds until the next useful proposal, None if nothing is known to be under way.

        A proposal that is overdue is expected to take as long again as it is late already. A drafter that leaves
        verdicts unanswered is late since the first of them.
        """
        if self._last_arrival is None or self._timing.rests:
            return None
        if not self._asked:
            due = late_since = self._last_arrival + self._timing.interval
        else:
            due, late_since = (asked + self._timing.response for _, asked in (self._asked[-1], self._asked[0]))
        if now < late_since:
            return due - now
        return max(due - now, (now - late_since) + 0.25 * self._timing.interval)


def _smoothed(average: float, seconds: float) -> float:
    return average + _WEIGHT * (min(max(seconds, 0.0), _OUTLIER * average) - average)
