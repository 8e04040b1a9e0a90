"""The chain of a tree that is verified."""

import math

from draftwire_core.adapters.common.draft_tree import best_chain
from draftwire_core.engine.planning.acceptance_model import AcceptanceModel
from draftwire_core.engine.tree.token_tree import Node, TokenTree

MODELS = {"a": AcceptanceModel()}


def add(tree: TokenTree, parent: Node, token: int, probability: float, source: str = "a") -> Node:
    return tree.add(parent, token, math.log(probability), source)[0]


def test_an_empty_tree_has_none() -> None:
    assert best_chain(TokenTree(3, 7), MODELS, 5) == []


def test_no_more_than_asked_for() -> None:
    tree = TokenTree(3, 7)
    node = tree.root
    nodes = [node := add(tree, node, token, 0.95) for token in range(8)]
    assert best_chain(tree, MODELS, 5) == nodes[:5]


def test_a_likelier_rest_outweighs_a_likelier_beginning() -> None:
    tree = TokenTree(3, 7)
    add(tree, tree.root, 1, 0.55)  # the first child, and the end of its branch
    second = add(tree, tree.root, 2, 0.55)
    rest = add(tree, second, 3, 0.95)
    more = add(tree, rest, 4, 0.95)
    chosen = best_chain(tree, MODELS, 5)
    worth_of_first = MODELS["a"].probability(tree.root.children[1])
    worth_of_second = MODELS["a"].probability(second) * (
        1 + MODELS["a"].probability(rest) * (1 + MODELS["a"].probability(more))
    )
    assert chosen == ([second, rest, more] if worth_of_second > worth_of_first else [tree.root.children[1]])


def test_what_lies_deeper_than_is_verified_does_not_count() -> None:
    tree = TokenTree(3, 7)
    shallow = add(tree, tree.root, 1, 0.95)
    deep = add(tree, tree.root, 2, 0.35)
    for token in range(10, 20):
        deep = add(tree, deep, token, 0.95)
    assert best_chain(tree, MODELS, 1) == [shallow]


def test_a_drafter_that_was_forgotten_is_of_no_worth() -> None:
    tree = TokenTree(3, 7)
    add(tree, tree.root, 1, 0.95, "gone")
    known = add(tree, tree.root, 2, 0.35)
    assert best_chain(tree, MODELS, 3) == [known]
