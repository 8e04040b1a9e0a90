"""The shared credit for first trials of single-request drafters, such as predictions."""

from __future__ import annotations

from speculative_engine.planning.drafting_account import MOST_CREDIT, START_CREDIT, DraftingAccount

_LEAST = 0.5
"""Credit of a first trial, in plain steps, however poor earlier drafters were. A lookup that takes a tenth of a step
can follow five tokens on it, and needs no verified node to see that they are right."""


class TrialPurse:
    """Provides the starting credit of each drafter in a group, and takes back what is left of it.

    The purse starts with the credit of one drafter. While the group earns what it costs, each member starts with the
    same credit as any other drafter. Members that cost more than they save empty the purse. Then each still gets a
    small first trial of its own: wrong predictions do not slow other requests down, and right ones are still used.
    """

    def __init__(self) -> None:
        self._credit = START_CREDIT
        self._given: dict[DraftingAccount, float] = {}
        """Credit granted beyond what the purse held, by account; it is not taken back."""

    def begin(self) -> DraftingAccount:
        """Returns the account of another drafter in the group."""
        credit = min(self._credit, START_CREDIT)
        self._credit -= credit
        account = DraftingAccount(max(credit, _LEAST))
        self._given[account] = account.balance - credit
        return account

    def end(self, account: DraftingAccount) -> None:
        """Takes back the balance of a drafter that has ended. Raises KeyError for an account of another purse."""
        self._credit = min(max(self._credit + account.balance - self._given.pop(account), 0.0), MOST_CREDIT)
