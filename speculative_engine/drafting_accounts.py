"""The accounts of all drafters in an engine's thread, and how a step is settled with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as ListLike
from typing import Literal, TypeVar

from speculative_engine.drafting_account import DraftingAccount
from speculative_engine.sequence import Sequence
from speculative_engine.step_cost import StepCost
from speculative_engine.step_result import SequenceOutcome
from speculative_engine.verification_job import VerificationJob

Kind = Literal["greedy", "sampled", "mixed"]
"""How the sequences of a step are sampled. What pays for greedy ones need not for others, and all sequences of a
step wait for its drafting together."""
AmountT = TypeVar("AmountT", int, float)


class DraftingAccounts:
    """By drafter and kind of step. What was learned in one sequence stands for the next ones. Drafters that are there
    for one request only, such as its prediction, share an account: that of their like."""

    def __init__(self, cost: StepCost):
        """cost: of the target's steps."""
        self._cost = cost
        self._kind: Kind = "greedy"
        self.rest = True
        """Whether none of them may draft for the next step."""
        self._accounts: dict[str, dict[Kind, DraftingAccount]] = {}
        """By name: that of the drafter, or of its like."""
        self._names: dict[str, str] = {}
        """Of the account, by source."""
        self._seconds: dict[str, float] = {}
        """Since the last step, by source."""
        self._reading: dict[str, float] = {}
        """Of these, what went into reading prompts."""
        self._drafted: set[str] = set()
        """Those that have drafted since the last step."""
        self._told: dict[str, float] = {}
        """Seconds since `take_seconds`, by source."""

    def add(self, source: str) -> None:
        """Have an account of a drafter."""
        self._accounts[source] = {}
        self._names[source] = source

    def share(self, source: str, like: str) -> None:
        """Have a drafter use the account of its like; does nothing if it has none."""
        if self._names.get(source) == source != like:
            del self._accounts[source]
            self._accounts.setdefault(like, {})
            self._names[source] = like

    def remove(self, source: str) -> None:
        """Have none of it any more, but for that of its like; does nothing if there is none."""
        if self._names.get(source) == source:
            del self._accounts[source]
        for each in (self._names, self._seconds, self._reading, self._told):
            each.pop(source, None)
        self._drafted.discard(source)

    def turn_to(self, sequences: Iterable[Sequence]) -> None:
        """The next step is about these sequences."""
        greedy = {sequence.sampling.temperature == 0 for sequence in sequences}
        self._kind = "mixed" if len(greedy) > 1 else "sampled" if False in greedy else "greedy"
        self.rest = not any(self.open(source) for source in self._names)

    def open(self, source: str) -> bool:
        """Whether a drafter may draft for the next step."""
        return self._account(self._names[source]).open

    def paid_off(self, source: str) -> bool:
        """Whether all that a drafter has cost has come back."""
        return self._account(self._names[source]).paid_off

    def spent(self, source: str, seconds: float, *, reading: float = 0.0, drafted: bool = False) -> None:
        """Time was taken for a drafter. reading: the part of it that went into reading prompts. drafted: whether it
        was taken to draft, and not to keep the drafter up to date."""
        self._seconds[source] = self._seconds.get(source, 0.0) + seconds
        self._reading[source] = self._reading.get(source, 0.0) + reading
        if drafted:
            self._drafted.add(source)

    def settle(self, decoding: int, jobs: ListLike[VerificationJob], outcomes: ListLike[SequenceOutcome]) -> None:
        """Settle a step that has been made: each drafter is charged the rows that are its own, too.

        decoding: sequences of the step that were not in their prompts.
        """
        if not self._names:
            return
        rows = max(1, sum(job.rows for job in jobs))
        sequences = max(1, decoding)
        seconds, plain = self._cost.seconds(rows, sequences), self._cost.seconds(sequences, sequences)
        names = set(self._names.values())
        elapsed = seconds / plain / len(names)
        if rows == decoding and not self._seconds:  # nobody did anything
            for name in names:
                self._account(name).stepped(elapsed, drafted=False)
            return
        probes = Counter(job.prober for job in jobs for _ in job.probes.nodes if job.prober is not None)
        own_rows = self._by_account(Counter(node.source for job in jobs for node in job.nodes) + probes)
        sources = [source for outcome in outcomes for source in outcome.sources]
        accepted = self._by_account(Counter(source for source in sources if source is not None))
        own, reading = self._by_account(self._seconds), self._by_account(self._reading)
        drafted = own_rows.keys() | {self._names[source] for source in self._drafted}
        for name in names:
            saved = accepted.get(name, 0)
            read = reading.get(name, 0.0)
            self._account(name).stepped(
                elapsed,
                saved=saved / max(1, len(sources) - saved),
                cost=(own.get(name, 0.0) - read + self._cost.added(rows, own_rows.get(name, 0))) / plain,
                reading=read / plain,
                drafted=name in drafted,
            )
        for source in self._seconds.keys() | probes.keys():
            told = self._seconds.get(source, 0.0) + self._cost.added(rows, probes[source])
            self._told[source] = self._told.get(source, 0.0) + told
        self._seconds.clear()
        self._reading.clear()
        self._drafted.clear()

    def take_seconds(self) -> dict[str, float]:
        """How long each has drafted since this was last asked, and had rows of its own computed to learn from."""
        seconds, self._told = self._told, {}
        return seconds

    def _by_account(self, amounts: Mapping[str, AmountT]) -> dict[str, AmountT]:
        """Sums by account of what is known by source."""
        sums: dict[str, AmountT] = {}
        for source, amount in amounts.items():
            name = self._names.get(source)
            if name is not None:
                sums[name] = sums[name] + amount if name in sums else amount
        return sums

    def _account(self, name: str) -> DraftingAccount:
        by_kind = self._accounts[name]
        account = by_kind.get(self._kind)
        if account is None:
            account = by_kind[self._kind] = DraftingAccount()
        return account
