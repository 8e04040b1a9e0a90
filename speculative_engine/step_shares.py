"""What shares a drafting step, where several verifiers draw on it: one packed batch, its rows divided by weight.

Of what one verifier wants the best comes first, as ever (`tree_growth`). Between verifiers it goes by `fair_shares`:
committed tokens among those that have some to compute, and nodes among those that have some worth drafting. A verifier
wants the nodes that it would have if it were alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from speculative_engine.fair_shares import FairRows, ServedVerifier, max_min
from speculative_engine.token_tree import Node
from speculative_engine.tree_growth import GrowingTree, TreeGrowth


class StepShares:
    """Divides step after step. With one verifier it leaves everything as it is."""

    def __init__(self, growth: TreeGrowth):
        self._growth = growth
        self._committed, self._questions, self._nodes = FairRows(), FairRows(), FairRows()

    def committed(self, pending: Iterable[tuple[ServedVerifier, int]], rows: int) -> dict[ServedVerifier, int]:
        """How many committed tokens of each verifier a step of at most `rows` of them computes.

        pending: of each sequence, whose it is and how many tokens it has to compute.
        """
        return _divided(self._committed, pending, rows)

    def questions(self, asked: Iterable[tuple[ServedVerifier, int]], rows: int) -> dict[ServedVerifier, int]:
        """The same of rows that nothing is drafted from, and that decide what a node's children are."""
        return _divided(self._questions, asked, rows)

    def expansions(
        self, trees: Sequence[tuple[ServedVerifier, GrowingTree]], other_rows: int, max_rows: int
    ) -> list[tuple[int, Node]]:
        """As `TreeGrowth.expansions`, with whose tree each is. Of the nodes that make the most of the step each
        verifier gets its share, as far as it wants it.

        Nobody's step gets longer by other verifiers' nodes than its share of the drafter's time allows: of two with
        the same weight, each has its nodes at half the speed at least at which it would have them alone.
        """
        growth = self._growth
        leaves = growth.leaves([tree for _, tree in trees])
        worths: dict[ServedVerifier, list[float]] = {}
        for worth, index, _ in leaves:
            worths.setdefault(trees[index][0], []).append(worth)
        count = growth.worthwhile([worth for worth, _, _ in leaves], other_rows, max_rows)
        if len(worths) < 2:
            return [(index, node) for _, index, node in leaves[:count]]
        wanted = {each: growth.worthwhile(own, other_rows, max_rows) for each, own in worths.items()}
        granted = self._nodes.divide(wanted, min(count, self._bearable(wanted, other_rows, max_rows)))
        chosen: list[tuple[int, Node]] = []
        for _, index, node in leaves:
            verifier = trees[index][0]
            if granted[verifier]:
                granted[verifier] -= 1
                chosen.append((index, node))
        return chosen

    def _bearable(self, wanted: Mapping[ServedVerifier, int], other_rows: int, max_rows: int) -> int:
        """Most nodes of a step that takes nobody longer than its own ones would with its share of the time."""
        shares = max_min(dict.fromkeys(wanted, 1.0), 1.0)
        further = self._growth.cost.further_rows
        return min(rows + further(other_rows + rows, 1 / shares[each], max_rows) for each, rows in wanted.items())


def _divided(queue: FairRows, wants: Iterable[tuple[ServedVerifier, int]], rows: int) -> dict[ServedVerifier, int]:
    wanted: dict[ServedVerifier, int] = {}
    for verifier, count in wants:
        if count:
            wanted[verifier] = wanted.get(verifier, 0) + count
    return queue.divide(wanted, rows)
