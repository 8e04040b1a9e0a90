"""Whether one drafter may draft: what it has saved, less what it has taken."""

from __future__ import annotations

_ALLOWANCE = 0.01
"""Share of the time that may go to a drafter that saves nothing."""
START_BALANCE = 3.0
"""Credit of a drafter of which nothing is known."""
MOST_BALANCE = 4.0
"""Most credit: so much may go when a drafter that has paid for long pays no longer."""
_TRIAL = 8
"""Steps for which there has to be credit before a drafter that rests is tried again: what it has to learn about a text,
and what that brings, takes some steps to show."""
_READING_STEPS = 64
"""Steps over which the reading of a prompt is paid for, as it serves all that follow."""
_OUTLIER = 4.0
"""A drafting beyond this multiple of what they take lately counts as this multiple: the machine was briefly busy."""
_WEIGHT = 0.25
"""Weight of a new measurement in the running average."""


class DraftingAccount:
    """An account in plain steps: in the time that the target's step takes without the drafter.

    What accepted tokens have saved is paid in, and what drafting took is taken out: seconds of the drafter's own in the
    target's thread, or those that messages to and from another process take, and those of rows that would not have been
    there without it. When nothing is left the drafter rests. Then only the allowance is paid in, until it is enough for
    a trial. So after any number of steps, by this count, a drafter has cost no more than the allowance, the credit it
    began with, and the last drafting.
    """

    def __init__(self, credit: float = START_BALANCE) -> None:
        """credit: what the drafter may cost before it has saved anything, in plain steps."""
        self.open = True
        """Whether the next step may be drafted for."""
        self.balance = credit
        """In plain steps."""
        self._cost: float | None = None
        """Of a step that was drafted for, lately."""
        self._due = 0.0
        """Of reading, not yet paid for."""

    @property
    def paid_off(self) -> bool:
        """Whether all that the drafter has cost has come back."""
        return self.balance >= START_BALANCE

    def fill(self) -> None:
        """Let the drafter draft as one of which nothing is known."""
        self.balance = max(self.balance, START_BALANCE)
        self.open = True

    def try_now(self) -> None:
        """Pay in what a trial takes, if it rests; one that has taken more than its credit owes it still."""
        if not self.open:
            self.balance += self._trial
            self.open = self.balance > 0

    @property
    def _trial(self) -> float:
        """The balance at which a paused drafter is tried again."""
        return min(START_BALANCE, _TRIAL * (self._cost or 0.0))

    def stepped(
        self, elapsed: float, *, saved: float = 0.0, cost: float = 0.0, reading: float = 0.0, drafted: bool
    ) -> None:
        """A step is over; all in plain steps.

        elapsed: its time. saved: by accepted tokens. cost: of drafting for it, without the reading of prompts. drafted:
        whether it was drafted for; else what keeping the drafter up to date has cost does not count.
        """
        self.balance += saved
        if drafted:
            self.balance -= self._usual(cost)
        self._due += reading
        payment = self._due / _READING_STEPS
        self._due -= payment
        self.balance = min(self.balance + _ALLOWANCE * elapsed - payment, MOST_BALANCE)
        if self.open:
            self.open = self.balance > 0
        else:
            self.open = self.balance >= self._trial

    def _usual(self, cost: float) -> float:
        """A cost as it counts: the first drafting is slow for reasons that do not last, and later ones may be."""
        if self._cost is None:
            self._cost = min(cost, START_BALANCE)
            return self._cost
        cost = min(cost, max(_OUTLIER * self._cost, START_BALANCE / _OUTLIER))
        self._cost += _WEIGHT * (cost - self._cost)
        return cost
