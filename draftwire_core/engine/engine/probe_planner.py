"""Probe planning: which sequences get probes in a step, and how many."""

from __future__ import annotations

import time
from collections.abc import Sequence as ListLike

from draftwire_core.engine.drafters.drafter import Drafter
from draftwire_core.engine.drafters.probing import ProbingDrafter
from draftwire_core.engine.engine.drafting_accounts import DraftingAccounts
from draftwire_core.engine.engine.sequence import Sequence
from draftwire_core.engine.engine.verification_job import VerificationJob
from draftwire_core.engine.planning.step_cost import StepCost

_STRETCH = 1.25
"""How many times as long a step may become through its probes. Nearly free rows never reach this limit; where each row
has its price, a few probes give the best return."""
_STRETCH_FOR_FEWEST = 2.0
"""As `_STRETCH`, for a step with no more probes than the fewest that each drafter can learn from."""


class ProbePlanner:
    """Chooses the probes of a step. Each sequence has at most one probing drafter, the first one attached."""

    def __init__(self, cost: StepCost, accounts: DraftingAccounts):
        """accounts: decide which drafters may draft, and so probe."""
        self._cost = cost
        self._accounts = accounts
        self._drafters: dict[str, ProbingDrafter] = {}

    def add(self, source: str, drafter: Drafter) -> None:
        """Adds a drafter; one that does not probe is ignored."""
        if isinstance(drafter, ProbingDrafter):
            self._drafters[source] = drafter

    def remove(self, source: str) -> None:
        """Removes a drafter; unknown ones are ignored."""
        self._drafters.pop(source, None)

    def choose(self, jobs: ListLike[VerificationJob], room: int) -> int:
        """Adds at most `room` probes, in equal shares, to the jobs of a step that computes no prompts.

        Returns the number of probes added.
        """
        if not self._drafters or self._accounts.rest:
            return 0
        probing = []
        for job in jobs:
            prober = self._prober(job.sequence)
            if prober is not None and self._accounts.open(prober):
                job.prober = prober
                probing.append((job, prober))
        most = left = self._most([prober for _, prober in probing], jobs, room)
        for index, (job, prober) in enumerate(probing):
            started = time.perf_counter()
            drafter, sequence, share = self._drafters[prober], job.sequence, left // (len(probing) - index)
            if not self._accounts.paid_off(prober):
                share = min(share, drafter.least_rows)
            job.probes = drafter.probes(sequence.spec.sequence_id, sequence.tree.root, share)
            left -= len(job.probes.nodes)
            self._accounts.spent(prober, time.perf_counter() - started, drafted=True)
        return most - left

    def learn(self, job: VerificationJob, drawn: list[int]) -> None:
        """Passes the target's answers to a job's probes to their drafter, ahead of the verdict."""
        if job.prober is not None and job.probes.asked:
            started = time.perf_counter()
            self._drafters[job.prober].learn(job.sequence.spec.sequence_id, job.told(drawn))
            self._accounts.spent(job.prober, time.perf_counter() - started)

    def _most(self, probers: ListLike[str], jobs: ListLike[VerificationJob], room: int) -> int:
        """Returns the most probes for these drafters in a step of these jobs."""
        if not probers:
            return 0
        fewest = sum(self._drafters[prober].least_rows for prober in probers)
        rows = sum(job.rows for job in jobs)
        most = self._cost.further_rows(rows, _STRETCH, room, len(jobs))
        if most >= fewest:
            return most
        return self._cost.further_rows(rows, _STRETCH_FOR_FEWEST, min(fewest, room), len(jobs))

    def _prober(self, sequence: Sequence) -> str | None:
        """Returns the drafter that probes for a sequence, or None."""
        if sequence.step_alone or sequence.spec.max_draft_tokens == 0:
            return None
        return next((source for source in sequence.readers if source in self._drafters), None)
