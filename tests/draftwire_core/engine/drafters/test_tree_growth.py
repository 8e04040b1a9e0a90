"""The order in which a drafter grows its tree."""

import math
from collections.abc import Sequence

from draftwire_core.engine.drafters.tree_growth import GrowingTree, TreeGrowth
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.tree.token_tree import Node, TokenTree

SURE, LIKELY, UNLIKELY = math.log(0.95), math.log(0.6), math.log(0.05)


def growing(max_nodes: int = 32, max_position: int = 1000) -> GrowingTree:
    return GrowingTree(TokenTree(10, 1), max_nodes, max_position)


def grown(growth: TreeGrowth, tree: GrowingTree, parent: Node, log_probs: Sequence[float]) -> list[Node]:
    """Gives a node children, like a step that took it through the model."""
    parent.slot = 1
    return growth.children(tree, parent, range(1, len(log_probs) + 1), log_probs)


def test_the_best_node_comes_first() -> None:
    growth, tree = TreeGrowth(), growing()
    assert not growth.can_expand(tree)
    first, second = grown(growth, tree, tree.tree.root, [LIKELY, math.log(0.3)])
    assert growth.expansions([tree], 0, 8) == [(0, first), (0, second)]
    assert growth.can_expand(tree)
    (below,) = grown(growth, tree, first, [SURE])
    assert [node for _, node in growth.expansions([tree], 0, 8)] == [below, second]


def test_all_sequences_are_weighed_together() -> None:
    growth, trees = TreeGrowth(), [growing(), growing()]
    (unsure,) = grown(growth, trees[0], trees[0].tree.root, [UNLIKELY])
    (sure,) = grown(growth, trees[1], trees[1].tree.root, [SURE])
    assert growth.expansions(trees, 0, 8) == [(1, sure), (0, unsure)]
    assert growth.expansions(trees, 0, 1) == [(1, sure)]


def test_rows_that_cost_their_time_leave_room_for_few() -> None:
    """Where each row costs as much as the first, only the best node is drafted."""
    dear = TreeGrowth(StepCost([1, 10], [1.0, 10.0]))
    tree = growing()
    first, _ = grown(dear, tree, tree.tree.root, [LIKELY, math.log(0.3)])
    assert dear.expansions([tree], 0, 8) == [(0, first)]


def test_a_step_that_is_long_anyway_takes_more() -> None:
    cost = StepCost([1, 2, 100], [1.0, 2.0, 2.0])
    growth, tree = TreeGrowth(cost), growing()
    grown(growth, tree, tree.tree.root, [LIKELY, math.log(0.3)])
    assert len(growth.expansions([tree], 0, 8)) == 1
    assert len(growth.expansions([tree], 50, 8)) == 2


def test_the_first_child_is_drafted_however_unlikely() -> None:
    growth, tree = TreeGrowth(), growing()
    assert len(grown(growth, tree, tree.tree.root, [math.log(1e-6), math.log(1e-6)])) == 1


def test_alternatives_end_with_the_width_and_with_the_candidates() -> None:
    growth, tree = TreeGrowth(width=2), growing()
    assert len(grown(growth, tree, tree.tree.root, [LIKELY] * 4)) == 2
    tree = growing()
    assert [node.token for node in growth.children(tree, tree.tree.root, [5, -1], [LIKELY, -math.inf])] == [5]


def test_the_credit_is_kept() -> None:
    growth, tree = TreeGrowth(), growing(max_nodes=2)
    (first,) = grown(growth, tree, tree.tree.root, [SURE])
    assert growth.expansions([tree], 0, 8) == [(0, first)]
    assert len(grown(growth, tree, first, [SURE, SURE, SURE])) == 1
    assert growth.expansions([tree], 0, 8) == []


def test_a_large_credit_is_worth_filling_with_less_likely_nodes() -> None:
    growth = TreeGrowth()
    counts = []
    for credit in (8, 128):
        tree = growing(max_nodes=credit)
        first, *others = grown(growth, tree, tree.tree.root, [UNLIKELY, UNLIKELY, UNLIKELY])
        below = grown(growth, tree, first, [UNLIKELY, UNLIKELY, UNLIKELY])
        counts.append((len(others), len(below), len(growth.expansions([tree], 0, 64))))
    assert counts == [(0, 1, 1), (2, 3, 5)]


def test_nothing_is_drafted_beyond_the_last_useful_position() -> None:
    growth, tree = TreeGrowth(), growing(max_position=11)
    (first,) = grown(growth, tree, tree.tree.root, [SURE])
    assert growth.expansions([tree], 0, 8) == [(0, first)]
    grown(growth, tree, first, [SURE])
    assert growth.expansions([tree], 0, 8) == []


def test_a_bounded_depth() -> None:
    growth, tree = TreeGrowth(depth=2), growing()
    node = tree.tree.root
    for _ in range(2):
        (node,) = grown(growth, tree, node, [SURE])
    assert growth.expansions([tree], 0, 8) == []
    tree.tree.commit([1])
    assert growth.expansions([tree], 0, 8) == [(0, node)]


def test_a_chain_of_a_fixed_length_is_drafted_however_unlikely() -> None:
    for credit_worth, length in ((0.0, 6), (1.28, 3)):
        growth, tree = TreeGrowth(width=1, depth=6, credit_worth=credit_worth), growing()
        node, drafted = tree.tree.root, 0
        while True:
            (node,) = grown(growth, tree, node, [UNLIKELY])
            drafted += 1
            if growth.expansions([tree], 0, 8) == []:
                break
        assert drafted == length


def test_what_was_committed_is_learned_from() -> None:
    growth = TreeGrowth()
    for _ in range(300):
        tree = growing()
        first, *_ = grown(growth, tree, tree.tree.root, [SURE])
        growth.observe(tree.tree, [first.token + 1])  # never right
    tree = growing()
    (first,) = grown(growth, tree, tree.tree.root, [SURE])
    assert growth.expansions([tree], 0, 8) == [], "not worth a step any more"
