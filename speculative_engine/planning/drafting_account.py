"""The account of one drafter, which decides whether it may draft: what it has saved, less what it has taken."""

from __future__ import annotations

from speculative_engine.planning.running_mean import OUTLIER, RunningMean

ALLOWANCE = 0.01
"""Share of the time that may go to drafters that save nothing. It is what finding out again whether one does may cost;
drafters of no use are to slow requests down by 3 % at most, and what the count misses takes its part of that, too
(docs/benchmarks.md, "local_drafters.py")."""
START_BALANCE = 3.0
"""Balance of a drafter of which nothing is known."""
MOST_BALANCE = 4.0
"""Most balance: so much may go when a drafter that has paid for long pays no longer."""
_TRIAL = 8
"""Steps for which there has to be balance before a paused drafter is tried again: what it has to learn about a text,
and what that brings, takes some steps to show."""
_READING_STEPS = 64
"""Steps over which the reading of a prompt is paid for, as it serves all that follow."""
_WEIGHT = 0.25
"""Weight of a drafting in the running mean of what they cost: fewer than a trial has must be enough to know it."""
_LEAST_TRIAL_BALANCE = 0.5
"""Balance for a first trial, in plain steps, however poor earlier drafters were. A lookup that takes a tenth of a step
can follow five tokens for it, and need not have a node verified to see that they are right."""


class DraftingAccount:
    """A balance of time in plain steps: the duration of a target step without the drafter.

    Accepted tokens pay in what they have saved. Drafting is paid from it: the drafter's own seconds in the target's
    thread, or those that messages to and from another process take, and those of rows that would not have been there
    without it. With nothing left the drafter is paused. Then only the allowance is paid in, until it is enough for a
    trial. So after any number of steps, by this count, a drafter has cost no more than the allowance, the balance it
    began with, and the last drafting.
    """

    def __init__(self, balance: float = START_BALANCE) -> None:
        """balance: what the drafter may cost before it has saved anything, in plain steps."""
        self.open = True
        """Whether the next step may be drafted for."""
        self.balance = balance
        """In plain steps."""
        self._cost = RunningMean(weight=_WEIGHT, floor=START_BALANCE / OUTLIER)
        """What a step has cost that was drafted for. The first drafting is slow for reasons that do not last, and later
        ones may be."""
        self._due = 0.0
        """Balance due for reading prompts."""

    @property
    def paid_off(self) -> bool:
        """Whether all that the drafter has cost has come back."""
        return self.balance >= START_BALANCE

    def fill(self) -> None:
        """Let the drafter draft as one of which nothing is known."""
        self.balance = max(self.balance, START_BALANCE)
        self.open = True

    def try_now(self) -> None:
        """Pay in what a trial takes, if the drafter is paused; one that has overdrawn its account owes that still."""
        if not self.open:
            self.balance += self._trial
            self.open = self.balance > 0

    @property
    def _trial(self) -> float:
        """The balance at which a paused drafter is tried again."""
        return min(START_BALANCE, _TRIAL * self._cost.value)

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
            self.balance -= self._cost.add(cost if self._cost.known else min(cost, START_BALANCE))
        self._due += reading
        payment = self._due / _READING_STEPS
        self._due -= payment
        self.balance = min(self.balance + ALLOWANCE * elapsed - payment, MOST_BALANCE)
        if self.open:
            self.open = self.balance > 0
        else:
            self.open = self.balance >= self._trial


class TrialPurse:
    """Gives each drafter of a group the account it begins with, and takes back what is left of it.

    The predictions of all requests are such a group. The purse begins with the balance of one drafter. While the group
    earns what it costs, each member begins with as much as any other drafter. Members that cost more than they save
    empty the purse; then each still has a first trial of its own, which is small, so that wrong predictions neither
    slow other requests down nor keep right ones from being used.
    """

    def __init__(self) -> None:
        self._balance = START_BALANCE
        self._given: dict[DraftingAccount, float] = {}
        """Balance beyond what the purse had, by account; it is not taken back."""

    def begin(self) -> DraftingAccount:
        """Return the account of another drafter of the group."""
        balance = min(self._balance, START_BALANCE)
        self._balance -= balance
        account = DraftingAccount(max(balance, _LEAST_TRIAL_BALANCE))
        self._given[account] = account.balance - balance
        return account

    def end(self, account: DraftingAccount) -> None:
        """Take back the balance of a drafter that has ended. Raises KeyError for an account of another purse."""
        self._balance = min(max(self._balance + account.balance - self._given.pop(account), 0.0), MOST_BALANCE)
