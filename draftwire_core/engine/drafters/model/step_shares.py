"""The division of a drafting step among several verifiers: one packed batch, with rows divided by weight.

Each verifier's best nodes come first, as in `tree_growth`. Between verifiers `fair_shares` decides: committed tokens
are divided among those with some to compute, and nodes among those with some worth drafting. A verifier's demand is the
nodes that it would have if it were alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from draftwire_core.engine.drafters.tree_growth import GrowingTree, TreeGrowth
from draftwire_core.engine.kv.fair_shares import FairRows, ServedVerifier, shares
from draftwire_core.engine.tree.token_tree import Node


class StepShares:
    """Divides the rows of successive steps. A single verifier gets all of them."""

    def __init__(self, growth: TreeGrowth):
        self._growth = growth
        self._committed, self._questions, self._nodes = FairRows(), FairRows(), FairRows()

    def committed(self, pending: Iterable[tuple[ServedVerifier, int]], rows: int) -> dict[ServedVerifier, int]:
        """Returns how many committed tokens of each verifier to compute in a step of at most `rows` of them.

        pending: for each sequence, its verifier and number of pending tokens.
        """
        return _divided(self._committed, pending, rows)

    def questions(self, asked: Iterable[tuple[ServedVerifier, int]], rows: int) -> dict[ServedVerifier, int]:
        """Divides rows that determine a node's children, one of which may keep them."""
        return _divided(self._questions, asked, rows)

    def expansions(
        self, trees: Sequence[tuple[ServedVerifier, GrowingTree]], other_rows: int, max_rows: int
    ) -> list[tuple[int, Node]]:
        """Returns the nodes to expand as `TreeGrowth.expansions` does, divided among the verifiers that own the trees.

        Each verifier gets its share of the nodes that are worth a step, up to its demand. Other verifiers' nodes never
        make a step longer than a verifier's share of the drafter's time allows: of two with the same weight, each gets
        its nodes at no less than half the speed that it would have alone.
        """
        growth = self._growth
        leaves = growth.leaves([tree for _, tree in trees])
        count = growth.worthwhile([worth for worth, _, _ in leaves], other_rows, max_rows)
        places: dict[ServedVerifier, int] = {}
        place_of = [places.setdefault(verifier, len(places)) for verifier, _ in trees]
        worths: list[list[float]] = [[] for _ in places]
        for worth, index, _ in leaves:
            worths[place_of[index]].append(worth)
        wanting = [verifier for verifier, place in places.items() if worths[place]]
        if len(wanting) < 2 or (
            count == len(leaves) and self._bearable(count, dict.fromkeys(wanting, 1), other_rows) == count
        ):  # enough for all
            return [(index, node) for _, index, node in leaves[:count]]
        wanted = {each: growth.worthwhile(worths[places[each]], other_rows, max_rows) for each in wanting}
        granted = self._nodes.divide(wanted, self._bearable(count, wanted, other_rows))
        left = [granted.get(verifier, 0) for verifier in places]
        chosen: list[tuple[int, Node]] = []
        for _, index, node in leaves:
            if left[place_of[index]]:
                left[place_of[index]] -= 1
                chosen.append((index, node))
        return chosen

    def _bearable(self, count: int, own: Mapping[ServedVerifier, int], other_rows: int) -> int:
        """Returns the largest number of nodes, up to `count`, that lengthens no verifier's step beyond its share."""
        cost = self._growth.cost
        for each, share in shares(own).items():
            rows = other_rows + own[each]
            if cost.seconds(other_rows + count) * share > cost.seconds(rows):
                count = own[each] + cost.further_rows(rows, 1 / share, count - own[each])
        return count


def _divided(queue: FairRows, wants: Iterable[tuple[ServedVerifier, int]], rows: int) -> dict[ServedVerifier, int]:
    wanted: dict[ServedVerifier, int] = {}
    for verifier, count in wants:
        if count:
            wanted[verifier] = wanted.get(verifier, 0) + count
    return queue.divide(wanted, rows)
