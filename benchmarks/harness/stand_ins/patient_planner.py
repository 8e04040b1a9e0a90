"""Draft, then verify: a planner that waits for all draft tokens a request asks for, and verifies all of them."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire_core.engine.planning.planner import Candidate, Plan, Planner

_POLL_SECONDS = 0.2
"""Time for which the engine sleeps unless a proposal wakes it."""


class PatientPlanner(Planner):
    """Lets drafter and verifier alternate. A request's `max_draft_tokens` is the number of tokens to wait for; the
    planner waits for a drafter that has the sequence open, however long it takes."""

    def plan(
        self, candidates: Sequence[Candidate], other_rows: int = 0, max_rows: int | None = None, prompts: int = 0
    ) -> Plan:
        """Returns a plan of all nodes that may be verified."""
        nodes = [
            [node for node in candidate.tree.nodes() if node.position <= candidate.max_position][: candidate.max_nodes]
            for candidate in candidates
        ]
        plain = len(candidates) + other_rows
        rows = plain + sum(map(len, nodes))
        return Plan(nodes, float(len(candidates)), self.cost.seconds(rows), self.cost.seconds(plain))

    def worthwhile_wait(self, plan: Plan, candidates: Sequence[Candidate], now: float) -> float:
        """Returns the seconds to sleep while a drafter owes tokens."""
        for candidate, nodes in zip(candidates, plan.nodes, strict=True):
            useful = candidate.max_position - candidate.tree.root.position
            if candidate.clocks and len(nodes) < min(candidate.max_nodes, useful):
                return _POLL_SECONDS
        return 0.0
