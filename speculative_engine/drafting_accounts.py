"""The accounts of all drafters in an engine's thread, and how a step is settled with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as ListLike
from typing import Literal

from speculative_engine.drafting_account import DraftingAccount
from speculative_engine.sequence import Sequence
from speculative_engine.step_cost import StepCost
from speculative_engine.step_result import SequenceOutcome
from speculative_engine.verification_job import VerificationJob

Kind = Literal["greedy", "sampled", "mixed"]
"""How the sequences of a step are sampled. What pays for greedy ones need not for others, and all sequences of a
step wait for its drafting together."""


class DraftingAccounts:
    """By drafter and kind of step. What was learned in one sequence stands for the next ones."""

    def __init__(self, cost: StepCost):
        """cost: of the target's steps."""
        self._cost = cost
        self._kind: Kind = "greedy"
        self._accounts: dict[str, dict[Kind, DraftingAccount]] = {}
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

    def remove(self, source: str) -> None:
        """Have none of it any more; does nothing if there is none."""
        for each in (self._accounts, self._seconds, self._reading, self._told):
            each.pop(source, None)
        self._drafted.discard(source)

    def turn_to(self, sequences: Iterable[Sequence]) -> None:
        """The next step is about these sequences."""
        greedy = {sequence.sampling.temperature == 0 for sequence in sequences}
        self._kind = "mixed" if len(greedy) > 1 else "sampled" if False in greedy else "greedy"

    def open(self, source: str) -> bool:
        """Whether a drafter may draft for the next step."""
        return self._account(source).open

    def paid_off(self, source: str) -> bool:
        """Whether all that a drafter has cost has come back."""
        return self._account(source).paid_off

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
        if not self._accounts:
            return
        rows = max(1, sum(job.rows for job in jobs))
        nodes = Counter(node.source for job in jobs for node in job.nodes)
        probes = Counter(job.prober for job in jobs for _ in job.probes.nodes)
        accepted = Counter(source for outcome in outcomes for source in outcome.sources)
        tokens = accepted.total()
        seconds, plain = self._cost.seconds(rows), self._cost.seconds(max(1, decoding))
        for source in self._accounts:
            own = self._seconds.pop(source, 0.0)
            reading = self._reading.pop(source, 0.0)
            in_rows = self._of_rows(rows, nodes[source] + probes[source])
            self._account(source).stepped(
                seconds / plain,
                saved=accepted[source] / max(1, tokens - accepted[source]),
                cost=(own - reading + in_rows) / plain,
                reading=reading / plain,
                drafted=bool(nodes[source] or probes[source] or source in self._drafted),
            )
            told = own + self._of_rows(rows, probes[source])
            if told:
                self._told[source] = self._told.get(source, 0.0) + told
        self._drafted.clear()

    def take_seconds(self) -> dict[str, float]:
        """How long each has drafted since this was last asked, and had rows of its own computed to learn from."""
        seconds, self._told = self._told, {}
        return seconds

    def _of_rows(self, rows: int, own: int) -> float:
        """Seconds of a step that some of its rows have added."""
        return self._cost.seconds(rows) - self._cost.seconds(max(1, rows - own)) if own else 0.0

    def _account(self, source: str) -> DraftingAccount:
        return self._accounts[source].setdefault(self._kind, DraftingAccount())
