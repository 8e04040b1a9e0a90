"""The accounts of all drafters in the engine's thread, and their settlement after each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as ListLike
from typing import Literal

from draftwire_core.engine.engine.sequence import Sequence
from draftwire_core.engine.engine.step_result import SequenceOutcome
from draftwire_core.engine.engine.verification_job import VerificationJob
from draftwire_core.engine.planning.drafting_account import DraftingAccount, TrialPurse
from draftwire_core.engine.planning.step_cost import StepCost

Kind = Literal["greedy", "sampled", "mixed"]
"""How the sequences of a step are sampled. A drafter that pays for greedy sequences need not pay for sampled ones, and
all sequences of a step wait for its drafting together."""


class DraftingAccounts:
    """Accounts by drafter and kind of step. A drafter's earnings carry over from one sequence to the next.

    A drafter of a single request, such as its prediction, belongs to a group. It has its own account, so other
    requests' results do not decide whether it is tried; the group's purse decides for how long. All drafters of a group
    together get one drafter's share of the allowance.
    """

    def __init__(self, cost: StepCost):
        """cost: the cost model of the target's steps."""
        self._cost = cost
        self._kind: Kind = "greedy"
        self.rest = True
        """Whether no drafter may draft for the next step."""
        self._asked_for: set[str] = set()
        """Drafters of running sequences that always draft: these draft for the next step even if they are paused."""
        self._accounts: dict[str, dict[Kind, DraftingAccount]] = {}
        """Accounts by source, then by kind of step."""
        self._groups: dict[str, str] = {}
        """Group by source; a drafter without a group forms its own."""
        self._purses: dict[tuple[str, Kind], TrialPurse] = {}
        """Purses by group and kind of step."""
        self._seconds: dict[str, float] = {}
        """Seconds spent since the last step, by source."""
        self._reading: dict[str, float] = {}
        """Seconds spent on reading prompts since the last step, by source; included in `_seconds`."""
        self._drafted: set[str] = set()
        """Drafters that have drafted since the last step."""
        self._told: dict[str, float] = {}
        """Seconds since the last `take_seconds`, by source."""

    def add(self, source: str) -> None:
        """Opens an account for a drafter."""
        self._accounts[source] = {}
        self._groups[source] = source

    def group(self, source: str, group: str) -> None:
        """Moves a drafter into a group, with a new account; unknown drafters are ignored."""
        if source in self._groups and self._groups[source] != group:
            self.remove(source)
            self._accounts[source] = {}
            self._groups[source] = group

    def remove(self, source: str) -> None:
        """Removes a drafter's account; unknown drafters are ignored."""
        group = self._groups.get(source, source)
        if group != source:
            for kind, account in self._accounts[source].items():
                self._purses[group, kind].end(account)
        for each in (self._accounts, self._groups, self._seconds, self._reading, self._told):
            each.pop(source, None)
        self._drafted.discard(source)

    def turn_to(self, sequences: Iterable[Sequence]) -> None:
        """Selects the accounts for the next step by how its sequences are sampled, and notes which always draft."""
        greedy: set[bool] = set()
        self._asked_for.clear()
        for sequence in sequences:
            greedy.add(sequence.sampling.temperature == 0)
            if sequence.spec.always_draft:
                self._asked_for.update(sequence.readers)
        self._kind = "mixed" if len(greedy) > 1 else "sampled" if False in greedy else "greedy"
        self.rest = not any(self.open(source) for source in self._accounts)

    def open(self, source: str) -> bool:
        """Whether a drafter may draft for the next step."""
        return source in self._asked_for or self._account(source).open

    def rests(self, source: str) -> bool:
        """Whether a drafter has been tried and may not draft now, for sequences of no kind. Any thread may ask."""
        accounts = tuple(self._accounts.get(source, {}).values())
        return bool(accounts) and not any(account.open for account in accounts)

    def paid_off(self, source: str) -> bool:
        """Whether a drafter has earned back all that it has cost."""
        return self._account(source).paid_off

    def spent(self, source: str, seconds: float, *, reading: float = 0.0, drafted: bool = False) -> None:
        """Records time spent on a drafter.

        reading: the part spent on reading prompts. drafted: whether the time was spent on drafting, as opposed to
        keeping the drafter up to date.
        """
        self._seconds[source] = self._seconds.get(source, 0.0) + seconds
        self._reading[source] = self._reading.get(source, 0.0) + reading
        if drafted:
            self._drafted.add(source)

    def settle(self, decoding: int, jobs: ListLike[VerificationJob], outcomes: ListLike[SequenceOutcome]) -> None:
        """Settles a finished step: each drafter is also charged for the rows that only it needed.

        decoding: number of sequences in the step that had finished their prompts.
        """
        if not self._accounts:
            return
        rows = max(1, sum(job.rows for job in jobs))
        sequences = max(1, decoding)
        seconds, plain = self._cost.seconds(rows, sequences), self._cost.seconds(sequences, sequences)
        members = Counter(self._groups.values())
        elapsed = {source: seconds / plain / len(members) / members[group] for source, group in self._groups.items()}
        if rows == decoding and not self._seconds:  # no drafter did anything
            for source in self._accounts:
                self._account(source).stepped(elapsed[source], drafted=False)
            return
        probes = Counter(job.prober for job in jobs for _ in job.probes.nodes if job.prober is not None)
        own_rows = Counter(node.source for job in jobs for node in job.nodes) + probes
        sources = [source for outcome in outcomes for source in outcome.sources]
        accepted = Counter(source for source in sources if source is not None)
        nodes = sum(len(job.nodes) for job in jobs) + sum(probes.values())
        for source in self._accounts:
            account = self._account(source)
            if not account.open and source in self._asked_for:
                account.stepped(elapsed[source], drafted=False)  # drafting on demand is no trial of the drafter
                continue
            saved = accepted[source]
            read = self._reading.get(source, 0.0)
            drafting = self._seconds.get(source, 0.0) - read + self._cost.added(rows, own_rows[source], sequences)
            # Without the drafter the other tokens would have come from a step without its rows.
            others = max(sequences, decoding + nodes - own_rows[source])
            without = self._cost.seconds(others, sequences) / plain
            account.stepped(
                elapsed[source],
                saved=saved / max(1, len(sources) - saved) * without,
                cost=drafting / plain,
                reading=read / plain,
                drafted=source in own_rows or source in self._drafted,
            )
        for source in self._seconds.keys() | probes.keys():
            told = self._seconds.get(source, 0.0) + self._cost.added(rows, probes[source], sequences)
            self._told[source] = self._told.get(source, 0.0) + told
        self._seconds.clear()
        self._reading.clear()
        self._drafted.clear()

    def take_seconds(self) -> dict[str, float]:
        """Returns the seconds each drafter cost since the last call: its drafting, and its probe rows."""
        seconds, self._told = self._told, {}
        return seconds

    def _account(self, source: str) -> DraftingAccount:
        by_kind = self._accounts[source]
        account = by_kind.get(self._kind)
        if account is None:
            account = by_kind[self._kind] = self._begin(self._groups[source], source)
        return account

    def _begin(self, group: str, source: str) -> DraftingAccount:
        if group == source:
            return DraftingAccount()
        return self._purses.setdefault((group, self._kind), TrialPurse()).begin()
