"""Draft, then verify, in its obvious form: the policy that drafting ahead is compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from draftwire_core.engine.drafters.tree_growth import SOURCE, GrowingTree
from draftwire_core.engine.planning.planner import Candidate, Plan, Planner
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.tree.token_tree import Node, TokenTree


class FixedChainGrowth:
    """Drafts a chain of fixed length after the last committed token, and nothing while it is verified."""

    def __init__(self, length: int):
        self._length = length

    def observe(self, tree: TokenTree, tokens: Sequence[int]) -> None:
        """Learns nothing."""

    def expansions(self, trees: Sequence[GrowingTree], other_rows: int, max_rows: int) -> list[tuple[int, Node]]:
        """Returns the ends of incomplete chains."""
        found = []
        for index, growing in enumerate(trees):
            nodes = list(growing.tree.nodes())
            if nodes and len(nodes) < self._length and nodes[-1].position < growing.max_position:
                found.append((index, nodes[-1]))
        return found

    def children(
        self, growing: GrowingTree, parent: Node, tokens: Sequence[int], log_probs: Sequence[float]
    ) -> list[Node]:
        """Adds the likeliest child."""
        return [growing.tree.add(parent, tokens[0], log_probs[0], SOURCE)[0]]


class FixedChainPlanner(Planner):
    """Waits for whole chains and verifies all of them."""

    def __init__(self, cost: StepCost, max_rows: int, length: int):
        super().__init__(cost, max_rows)
        self._length = length

    def plan(
        self, candidates: Sequence[Candidate], other_rows: int = 0, max_rows: int | None = None, prompts: int = 0
    ) -> Plan:
        """Returns a plan of all nodes."""
        return Plan([list(each.tree.nodes()) for each in candidates], 0.0, 0.0)

    def worthwhile_wait(self, plan: Plan, candidates: Sequence[Candidate], now: float) -> float:
        """Returns infinity until all chains are complete, then 0."""
        complete = all(
            len(nodes) >= min(self._length, each.max_position - each.tree.root.position)
            for nodes, each in zip(plan.nodes, candidates, strict=True)
        )
        return 0.0 if complete else math.inf
