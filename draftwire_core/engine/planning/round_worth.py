"""The value of drafting: of a node under the verifier's credit, and of a round that puts the target's step off."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire_core.engine.planning.step_cost import StepCost

CREDIT_WORTH = 0.8
"""Nodes whose chance of being on the target's path is below this over the credit are not drafted. With a higher bar a
part of the credit stays unused; with a lower one unlikely nodes take the place of better ones to come
(benchmarks/simulation/pipeline_sim.py compares bars)."""


def least_worth(max_tree_nodes: int, credit_worth: float = CREDIT_WORTH) -> float:
    """Returns the minimum chance of being on the target's path at which a node is worth its place in a tree.

    max_tree_nodes: live nodes of the tree, at least 1. credit_worth: the sum of such chances over a full tree."""
    return credit_worth / max_tree_nodes


class RoundWorth:
    """Weighs a round of drafting by the planner's own measure, expected tokens per second.

    The rounds and the step run one after the other, so they are weighed as a whole: the rounds so far, the next round,
    and the step that verifies the best nodes. A round pays if it raises the expected tokens per second of the whole.
    Each round's nodes hang below those of the round before, so gains decrease, and drafting ends with the first round
    that does not pay.
    """

    def __init__(self, step: StepCost, drafting: StepCost):
        """step: cost of the target's steps. drafting: cost of a round."""
        self.drafting = drafting
        self._step = step

    def pays(
        self, decoding: int, worths: Sequence[float], gains: Sequence[float], rows: int, spent: float = 0.0
    ) -> bool:
        """Whether another round pays.

        decoding: number of sequences that the step decodes. worths: each drafted node's probability of being on the
        target's path. gains: the same for the nodes that the round is expected to add. rows: rows in the round. spent:
        expected seconds of the rounds before.
        """
        later = spent + self.drafting.seconds(rows)
        return self._rate(decoding, [*worths, *gains], later) > self._rate(decoding, worths, spent)

    def _rate(self, decoding: int, worths: Sequence[float], seconds: float) -> float:
        """Returns the expected tokens per second after `seconds` of drafting, for the best number of verified nodes."""
        expected = float(decoding)
        sequences = max(1, decoding)
        best = expected / (seconds + self._step.seconds(decoding, sequences))
        for rows, worth in enumerate(sorted(worths, reverse=True), start=decoding + 1):
            expected += worth
            best = max(best, expected / (seconds + self._step.seconds(rows, sequences)))
        return best
