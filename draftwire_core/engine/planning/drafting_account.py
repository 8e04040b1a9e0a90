"""The account of one drafter, which decides whether it may draft: what it has saved, less what it has taken."""

from __future__ import annotations

from draftwire_core.engine.planning.running_mean import OUTLIER, RunningMean

ALLOWANCE = 0.01
"""Share of the time that may go to trials of drafters that save nothing. Useless drafters may slow requests down by 3 %
at most, and costs that the account does not see are part of that, too (benchmarks/speed/local_drafters.py)."""
START_BALANCE = 3.0
"""Balance of an unknown drafter, in plain steps."""
MOST_BALANCE = 4.0
"""Maximum balance, in plain steps: the loss in one go when a drafter that was worth its cost for long no longer is."""
MOST_RESERVE = 12.0
"""Maximum of earlier savings, in plain steps, that pay for further trials of a drafter that was worth its cost: most
texts have stretches in which a good drafter guesses nothing."""
_RESERVE_SHARE = 0.2
"""Share of the time of a pause that the reserve pays for, besides the allowance."""
_TRIAL = 8
"""Steps that the balance must cover before a paused drafter is tried again: a drafter needs some steps to learn a text,
and its gain some more to show."""
_READING_STEPS = 64
"""Steps over which the cost of reading a prompt is spread, because all later steps profit from it."""
_WEIGHT = 0.25
"""Weight of a drafting in the running mean of their cost; a trial is long enough for the mean to settle."""
_LEAST_TRIAL_BALANCE = 0.5
"""Minimum balance for a first trial, in plain steps, however poor earlier drafters were. A lookup that takes a tenth of
a step can follow five tokens with it, and sees that they are right without having a node verified."""


class DraftingAccount:
    """One drafter's balance of time, in plain steps: durations of a target step without the drafter.

    Accepted tokens add the time they saved. Drafting takes its cost off: the drafter's own seconds in the target's
    thread, or those of its messages, and the seconds of the rows it added. At a balance of zero the drafter is paused.
    During the pause only the allowance is added, and a share of the reserve: what the drafter once saved beyond the
    maximum balance. The pause ends when the balance covers a trial. So after any number of steps a drafter has cost at
    most the allowance, its first balance and the last drafting, beyond what it has saved.
    """

    def __init__(self, balance: float = START_BALANCE) -> None:
        """balance: first balance, in plain steps."""
        self.open = True
        """Whether the drafter may draft for the next step."""
        self.balance = balance
        """Balance in plain steps."""
        self._cost = RunningMean(weight=_WEIGHT, floor=START_BALANCE / OUTLIER)
        """Cost of a step that was drafted for. The first drafting, and single later ones, can be slow for passing
        reasons."""
        self.due = 0.0
        """Balance due for reading prompts, in plain steps."""
        self._reserve = 0.0
        """Savings beyond the maximum balance, in plain steps, for trials during later pauses."""

    @property
    def paid_off(self) -> bool:
        """Whether the drafter has saved as much as it has cost."""
        return self.balance >= START_BALANCE

    def fill(self) -> None:
        """Raises the balance to that of an unknown drafter, and resumes."""
        self.balance = max(self.balance, START_BALANCE)
        self.open = True

    def try_now(self) -> None:
        """Adds the cost of a trial if the drafter is paused. A negative balance may still keep it paused."""
        if not self.open:
            self.balance += self._trial
            self.open = self.balance > 0

    @property
    def _trial(self) -> float:
        """Balance at which a paused drafter is tried again."""
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
        self.due += reading
        payment = self.due / _READING_STEPS
        self.due -= payment
        self.balance += ALLOWANCE * elapsed - payment
        # What exceeds the maximum balance pays what is due first. Otherwise a drafter that has saved many times its
        # reading would still owe it, and later steps, even those of requests without it, would empty its balance.
        surplus = max(self.balance - MOST_BALANCE, 0.0)
        self.balance -= surplus
        paid = min(surplus, self.due)
        self.due -= paid
        self._reserve = min(self._reserve + surplus - paid, MOST_RESERVE)
        if self.open:
            self.open = self.balance > 0
        else:
            withdrawn = min(self._reserve, _RESERVE_SHARE * elapsed)
            self._reserve -= withdrawn
            self.balance += withdrawn
            self.open = self.balance >= self._trial


class TrialPurse:
    """The common balance from which each drafter of a group gets its first account, and to which the rest returns.

    The predictions of all requests are such a group. The purse begins with the balance of one drafter. While the group
    saves what it costs, each member begins with the balance of any other drafter. Members that cost more than they save
    empty the purse. Each later member then gets a small first trial, so that wrong predictions do not slow other
    requests down and right ones are still used.
    """

    def __init__(self) -> None:
        self._balance = START_BALANCE
        self._given: dict[DraftingAccount, float] = {}
        """Balance beyond what the purse had, by account; it is not taken back."""

    def begin(self) -> DraftingAccount:
        """Returns the account of another drafter of the group."""
        balance = min(self._balance, START_BALANCE)
        self._balance -= balance
        account = DraftingAccount(max(balance, _LEAST_TRIAL_BALANCE))
        self._given[account] = account.balance - balance
        return account

    def end(self, account: DraftingAccount) -> None:
        """Takes back the balance of a drafter that has ended. Raises KeyError for an account of another purse."""
        self._balance = min(max(self._balance + account.balance - self._given.pop(account), 0.0), MOST_BALANCE)
