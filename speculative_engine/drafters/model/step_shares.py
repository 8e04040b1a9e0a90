"""What shares a drafting step, where several verifiers draw on it: one packed batch, its rows divided by weight.

Of what one verifier wants the best comes first, as ever (`tree_growth`). Between verifiers it goes by `fair_shares`:
committed tokens among those that have some to compute, and nodes among those that have some worth drafting. A verifier
wants the nodes that it would have if it were alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from speculative_engine.drafters.tree_growth import GrowingTree, TreeGrowth
from speculative_engine.kv.fair_shares import FairRows, ServedVerifier, shares
from speculative_engine.tree.token_tree import Node


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
        count = growth.worthwhile([worth for worth, _, _ in leaves], other_rows, max_rows)
        places: dict[ServedVerifier, int] = {}
        place_of = [places.setdefault(verifier, len(places)) for verifier, _ in trees]
        worths: list[list[float]] = [[] for _ in places]
        for worth, index, _ in leaves:
            worths[place_of[index]].append(worth)
        wanting = [verifier for verifier, place in places.items() if worths[place]]
        if len(wanting) < 2 or (
            count == len(leaves) and self._bearable(count, dict.fromkeys(wanting, 1), other_rows) == count
        ):  # there is enough for all
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
        """Of `count` nodes, so many that nobody's step gets longer than with its own ones, over its share."""
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
