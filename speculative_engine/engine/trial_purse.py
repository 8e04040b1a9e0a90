"""The credit for first trials that drafters of single requests, such as predictions, have in common."""

from __future__ import annotations

from speculative_engine.planning.drafting_account import MOST_BALANCE, START_BALANCE, DraftingAccount

_LEAST = 0.5
"""Credit of a first trial, in plain steps, however poor earlier drafters were. A lookup that takes a tenth of a step
can follow five tokens for it, and need not have a node verified to see that they are right."""


class TrialPurse:
    """Gives each drafter of a group the account it begins with, and takes back what is left of it.

    The purse begins with the credit of one drafter. While the group earns what it costs, each member begins with as
    much as any other drafter. Members that cost more than they save empty the purse; then each still has a first trial
    of its own, which is small, so that wrong predictions neither slow other requests down nor keep right ones from
    being used.
    """

    def __init__(self) -> None:
        self._credit = START_BALANCE
        self._given: dict[DraftingAccount, float] = {}
        """Credit beyond what the purse had, by account; it is not taken back."""

    def begin(self) -> DraftingAccount:
        """Return the account of another drafter of the group."""
        credit = min(self._credit, START_BALANCE)
        self._credit -= credit
        account = DraftingAccount(max(credit, _LEAST))
        self._given[account] = account.balance - credit
        return account

    def end(self, account: DraftingAccount) -> None:
        """Take back the balance of a drafter that has ended. Raises KeyError for an account of another purse."""
        self._credit = min(max(self._credit + account.balance - self._given.pop(account), 0.0), MOST_BALANCE)
