"""The account that decides whether a drafter may draft: time saved minus time spent."""

from __future__ import annotations

_ALLOWANCE = 0.01
"""Share of the time granted to a drafter that saves nothing."""
START_CREDIT = 3.0
"""Credit of a drafter without any record."""
MOST_CREDIT = 4.0
"""Largest credit, and so the most that is lost when a long profitable drafter stops paying off."""
_TRIAL = 8
"""Number of steps that must be affordable before a paused drafter is tried again, since it takes some steps to learn a
text and to show results."""
_READING_STEPS = 64
"""Number of steps over which the cost of reading a prompt is spread, as it serves all later steps."""
_OUTLIER = 4.0
"""A drafting cost beyond this multiple of the recent average is capped at it: the machine was briefly busy."""
_WEIGHT = 0.25
"""Weight of a new measurement in the running average."""


class DraftingAccount:
    """A balance of time in plain steps: the duration of a target step without the drafter.

    The time saved by accepted tokens is credited and the time spent on drafting is debited. That is the drafter's own
    time in the target's thread, or the time taken by messages to and from another process, plus the time of rows that
    exist only because of the drafter. When the balance is used up, the drafter is paused. From then on only the
    allowance is credited, until it suffices for a trial. At any time, by this measure, a drafter has cost no more than
    the allowance, its starting credit, and the last drafting.
    """

    def __init__(self, credit: float = START_CREDIT) -> None:
        """credit: what the drafter may cost before it has saved anything, in plain steps."""
        self.open = True
        """Whether the drafter may draft for the next step."""
        self.balance = credit
        """Balance in plain steps."""
        self._cost: float | None = None
        """Recent average cost of drafting for a step."""
        self._due = 0.0
        """Cost of reading prompts that has not been debited yet."""

    @property
    def paid_off(self) -> bool:
        """Whether the drafter has earned back all that it has cost."""
        return self.balance >= START_CREDIT

    def fill(self) -> None:
        """Raises the balance to that of a new drafter, and lets the drafter draft."""
        self.balance = max(self.balance, START_CREDIT)
        self.open = True

    def try_now(self) -> None:
        """Credits a paused drafter with the cost of a trial; a debt beyond that keeps it paused."""
        if not self.open:
            self.balance += self._trial
            self.open = self.balance > 0

    @property
    def _trial(self) -> float:
        """The balance at which a paused drafter is tried again."""
        return min(START_CREDIT, _TRIAL * (self._cost or 0.0))

    def stepped(
        self, elapsed: float, *, saved: float = 0.0, cost: float = 0.0, reading: float = 0.0, drafted: bool
    ) -> None:
        """Settles a step; all amounts are in plain steps.

        elapsed: duration of the step. saved: time saved by accepted tokens. cost: time spent on drafting, without the
        reading of prompts. drafted: whether the drafter drafted for the step; otherwise `cost`, spent on keeping up, is
        not debited.
        """
        self.balance += saved
        if drafted:
            self.balance -= self._usual(cost)
        self._due += reading
        payment = self._due / _READING_STEPS
        self._due -= payment
        self.balance = min(self.balance + _ALLOWANCE * elapsed - payment, MOST_CREDIT)
        if self.open:
            self.open = self.balance > 0
        else:
            self.open = self.balance >= self._trial

    def _usual(self, cost: float) -> float:
        """Returns the cost to debit: outliers are capped, since the first drafting and some later ones are atypically
        slow."""
        if self._cost is None:
            self._cost = min(cost, START_CREDIT)
            return self._cost
        cost = min(cost, max(_OUTLIER * self._cost, START_CREDIT / _OUTLIER))
        self._cost += _WEIGHT * (cost - self._cost)
        return cost
