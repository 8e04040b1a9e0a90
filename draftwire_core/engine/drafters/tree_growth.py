"""Best-first growth of all sequences' trees: which nodes a drafter expands next, and how many share a step.

A node is worth its probability of being on the target's path. Each further node makes a drafting step longer; nodes are
added, best first over all sequences, while value per second rises. A drafter whose steps cost the same for one row and
for ten therefore covers the likely verdicts in parallel, and one that pays for each row goes deep first. Growth does
not wait for verdicts: a tree grows until its credit is used up or nothing worth drafting is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from draftwire_core.engine.planning.acceptance_model import AcceptanceModel, observe_commit
from draftwire_core.engine.planning.round_worth import CREDIT_WORTH, least_worth
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.tree.token_tree import DraftDistribution, Draws, Node, TokenTree

SOURCE = "draft"
"""Source of the nodes that the model drafted."""


@dataclass(frozen=True, slots=True)
class GrowingTree:
    """A tree with its limits."""

    tree: TokenTree
    max_nodes: int
    """Most live nodes: the verifier's credit."""
    max_position: int
    """Position from which nodes need no children."""


class TreeGrowth:
    """Chooses nodes, independently of models and slots. A node with a KV slot has been through the model."""

    def __init__(
        self,
        cost: StepCost | None = None,
        *,
        width: int = 3,
        depth: int | None = None,
        credit_worth: float = CREDIT_WORTH,
    ):
        """cost: cost of the draft model's steps; by default independent of the number of rows. width: most children of
        a node. depth: most nodes below the last committed token on one path; unlimited by default. credit_worth:
        divided by the credit, this is the least probability of being on the target's path with which a node gets
        children, or is added next to its parent's first child; with 0 a chain always reaches its depth."""
        self.cost = cost if cost is not None else StepCost([1], [1.0])
        self.width = width
        self._depth = depth
        self._credit_worth = credit_worth
        self.acceptance = AcceptanceModel()

    def observe(self, tree: TokenTree, tokens: Sequence[int]) -> None:
        """Learns from tokens that are about to be committed."""
        observe_commit(tree, tokens, {SOURCE: self.acceptance})

    def expansions(self, trees: Sequence[GrowingTree], other_rows: int, max_rows: int) -> list[tuple[int, Node]]:
        """Returns the nodes that go through the model in the next step, most valuable first, each with its tree's
        index.

        other_rows: rows that the step has anyway. max_rows: most rows next to them.
        """
        leaves = self.leaves(trees)
        count = self.worthwhile([worth for worth, _, _ in leaves], other_rows, max_rows)
        return [(index, node) for _, index, node in leaves[:count]]

    def can_expand(self, growing: GrowingTree) -> bool:
        """Whether a tree has a node that can be expanded."""
        return next(self._leaves(growing), None) is not None

    def expands(self, growing: GrowingTree, node: Node) -> bool:
        """Whether a node may get children, by its chance and the limits of its tree."""
        return (
            growing.tree.size < growing.max_nodes
            and node.position < self.deepest(growing)
            and self.worth(growing, node) >= self.least_worth(growing)
        )

    def leaves(self, trees: Sequence[GrowingTree]) -> list[tuple[float, int, Node]]:
        """Returns all nodes that can be expanded, most valuable first, each with its value and its tree's index."""
        leaves = [(worth, index, node) for index, tree in enumerate(trees) for worth, node in self._leaves(tree)]
        leaves.sort(key=lambda leaf: -leaf[0])
        return leaves

    def worthwhile(self, worths: Sequence[float], other_rows: int, max_rows: int) -> int:
        """Returns how many of these nodes, most valuable first, give the step the most value per second.

        other_rows: rows that it has anyway. max_rows: most rows next to them.
        """
        worth, best_rate, count = 0.0, 0.0, 0
        for size, value in enumerate(worths[:max_rows], start=1):
            worth += value
            rate = worth / self.cost.seconds(other_rows + size)
            if rate <= best_rate:
                break
            best_rate, count = rate, size
        return count

    def children(
        self, growing: GrowingTree, parent: Node, tokens: Sequence[int], log_probs: Sequence[float]
    ) -> list[Node]:
        """Adds to the tree those of a node's candidates that are worth it, best first; the first one always is.

        tokens: candidates, padded with -1. log_probs: natural logarithms. Returns the new nodes.
        """
        tree = growing.tree
        worth = self.worth(growing, parent)
        children: list[Node] = []
        for token, log_prob in zip(tokens[: self.width], log_probs, strict=False):
            if token < 0 or tree.size >= growing.max_nodes:
                break
            candidate = Node(token, parent, parent.position + 1, min(log_prob, 0.0), SOURCE, len(parent.children))
            if children and worth * self.acceptance.probability(candidate) < self.least_worth(growing):
                break
            children.append(tree.add(parent, token, candidate.log_prob, SOURCE)[0])
        return children

    def drawn_children(
        self, growing: GrowingTree, parent: Node, distribution: DraftDistribution, tokens: Sequence[int]
    ) -> list[Node]:
        """Adds to the tree as many of a node's draws as are worth it; returns the new nodes.

        Their number must not depend on what was drawn (see `acceptance.rejection`). Draws are therefore valued as if
        they were the distribution's likeliest tokens, in order.
        """
        tree = growing.tree
        worth = self.worth(growing, parent)
        chances = dict(zip(distribution.token_ids, distribution.probabilities, strict=True))
        children: list[Node] = []
        for rank, (token, likeliest) in enumerate(zip(tokens[: self.width], distribution.probabilities, strict=False)):
            if tree.size >= growing.max_nodes:
                break
            if rank and worth * self.acceptance.chance(rank, likeliest) < self.least_worth(growing):
                break
            children.append(tree.add(parent, token, min(math.log(chances[token]), 0.0), SOURCE)[0])
        if children:
            parent.draws = Draws(tuple(node.token for node in children), distribution)
        return children

    def worth(self, growing: GrowingTree, node: Node) -> float:
        """Returns the probability that a node is on the target's path."""
        return math.prod(self.acceptance.probability(step) for step in node.path_from(growing.tree.root))

    def least_worth(self, growing: GrowingTree) -> float:
        """Returns the least such probability with which a node gets children."""
        return least_worth(growing.max_nodes, self._credit_worth)

    def deepest(self, growing: GrowingTree) -> int:
        """Returns the position from which nodes get no children."""
        if self._depth is None:
            return growing.max_position
        return min(growing.max_position, growing.tree.root.position + self._depth)

    def _leaves(self, growing: GrowingTree) -> Iterator[tuple[float, Node]]:
        """Yields the nodes worth expanding that have not been through the model or have lost their KV slots since."""
        tree = growing.tree
        if tree.size >= growing.max_nodes:
            return
        deepest = self.deepest(growing)
        least = self.least_worth(growing)
        stack = [(1.0, tree.root)]
        while stack:
            worth, node = stack.pop()
            for child in node.children.values():
                value = worth * self.acceptance.probability(child)
                if value < least or child.position >= deepest:
                    continue
                if child.slot < 0:
                    yield value, child
                else:
                    stack.append((value, child))
