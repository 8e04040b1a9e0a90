"""Which sequences get probes in a step, and how many."""

from __future__ import annotations

from collections.abc import Sequence as ListLike

from speculative_engine.drafters.drafter import Drafter
from speculative_engine.drafters.probing import ProbingDrafter
from speculative_engine.probe_budget import ProbeBudget
from speculative_engine.sequence import Sequence
from speculative_engine.step_cost import StepCost
from speculative_engine.step_result import SequenceOutcome
from speculative_engine.verification_job import VerificationJob

_STRETCH = 2.0
"""How many times as long a step may take for its probes. Where rows are all but free that is no limit; where each has
its price, more probes than that had to bring more than a token a step."""


class ProbePlanner:
    """The drafters that probe, by source, and what their probes have brought. Each sequence has one that probes at
    most: the first one attached."""

    def __init__(self, cost: StepCost):
        self._cost = cost
        self._drafters: dict[str, ProbingDrafter] = {}
        self._budgets: dict[str, ProbeBudget] = {}

    def add(self, source: str, drafter: Drafter) -> None:
        """Have a drafter; does nothing if it is none that probes."""
        if isinstance(drafter, ProbingDrafter):
            self._drafters[source] = drafter
            self._budgets[source] = ProbeBudget()

    def remove(self, source: str) -> None:
        """Have it no more; does nothing if there is none."""
        self._drafters.pop(source, None)
        self._budgets.pop(source, None)

    def choose(self, jobs: ListLike[VerificationJob], room: int) -> int:
        """Add probes, at most `room`, to the jobs of a step that computes no prompts; each gets as many as others.

        Returns how many they are."""
        if not self._drafters:
            return 0
        probing = []
        for job in jobs:
            job.prober = self._prober(job.sequence)
            if job.prober is not None and self._budgets[job.prober].probing:
                probing.append((job, self._drafters[job.prober]))
        most = left = self._cost.further_rows(sum(job.rows for job in jobs), _STRETCH, room) if probing else 0
        for index, (job, drafter) in enumerate(probing):
            sequence, share = job.sequence, left // (len(probing) - index)
            job.probes = drafter.probes(sequence.spec.sequence_id, sequence.tree.root, share)
            left -= len(job.probes.nodes)
        return most - left

    def learn(self, job: VerificationJob, drawn: list[int]) -> None:
        """Tell what the target said after a job's probes, before its verdict."""
        if job.prober is not None and job.probes.asked:
            self._drafters[job.prober].learn(job.sequence.spec.sequence_id, job.told(drawn))

    def stepped(self, jobs: ListLike[VerificationJob], outcomes: ListLike[SequenceOutcome]) -> dict[str, float]:
        """Settle the accounts after a step: by how many seconds each drafter's probes have made it longer."""
        taken: dict[str, float] = {}
        for source, budget in self._budgets.items():
            probes = sum(len(job.probes.nodes) for job in jobs if job.prober == source)
            if not probes:
                budget.stepped(0.0, 0.0, probed=False)
                continue
            rows = sum(job.rows for job in jobs)
            nodes = sum(node.source == source for job in jobs for node in job.nodes)
            accepted = sum(outcome.sources.count(source) for outcome in outcomes)
            others = sum(len(outcome.tokens) for outcome in outcomes) - accepted
            seconds, without = self._cost.seconds(rows), self._cost.seconds(rows - probes - nodes)
            budget.stepped(accepted / max(others, 1), seconds / without - 1, probed=True)
            taken[source] = seconds - self._cost.seconds(rows - probes)
        return taken

    def _prober(self, sequence: Sequence) -> str | None:
        """The drafter that probes for a sequence."""
        if sequence.step_alone or sequence.spec.max_draft_tokens == 0:
            return None
        return next((source for source in sequence.readers if source in self._drafters), None)
