"""Calibration learns from committed tokens alone, also about nodes that were never verified."""

import math
import random

import pytest

from draftwire_core.engine.planning.acceptance_model import AcceptanceModel, observe_commit
from draftwire_core.engine.tree.token_tree import Node, TokenTree


def node(log_prob: float = -0.1, rank: int = 0) -> Node:
    return Node(5, None, 3, log_prob, "d", rank)


def test_starts_cautious_and_ordered() -> None:
    model = AcceptanceModel()
    sure, unsure, second = node(math.log(0.95)), node(math.log(0.2)), node(math.log(0.2), rank=1)
    assert 1 > model.probability(sure) > model.probability(unsure) > model.probability(second) > 0


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9, 1.0])
def test_learns_the_rate_of_each_class_apart(rate: float) -> None:
    model, rng = AcceptanceModel(), random.Random(1)
    other = model.probability(node(math.log(0.2)))
    for _ in range(1000):
        model.observe(node(-0.01), rng.random() < rate)
    assert model.probability(node(-0.01)) == pytest.approx(rate, abs=0.08)
    assert model.probability(node(math.log(0.2))) == other
    assert 0 < model.probability(node(-0.01)) < 1


def test_forgets_what_was_long_ago() -> None:
    model = AcceptanceModel()
    for _ in range(1000):
        model.observe(node(), True)
    for _ in range(1000):
        model.observe(node(), False)
    assert model.probability(node()) < 0.05
    assert model.next_probability() < 0.3


def test_a_drafter_that_is_never_right_is_soon_not_worth_a_wait_whatever_it_says_of_itself() -> None:
    model = AcceptanceModel()
    assert 0.4 < model.next_probability() < 0.8
    for _ in range(200):
        model.observe(node(math.log(0.05)), False)
    assert model.next_probability() < 0.02
    for _ in range(20):
        model.observe(node(math.log(0.05), rank=1), True)
    assert model.next_probability() < 0.02


def test_all_siblings_of_committed_places_are_observed_and_no_others() -> None:
    seen: list[tuple[int, bool]] = []

    class Noting(AcceptanceModel):
        def observe(self, node: Node, hit: bool) -> None:
            seen.append((node.token, hit))

    tree = TokenTree(4, 0)
    one, _ = tree.add(tree.root, 1, source="d")
    wrong, _ = tree.add(tree.root, 2, source="d")
    tree.add(tree.root, 9, source="unknown")
    tree.add(one, 3, source="d")
    tree.add(one, 4, source="d")
    tree.add(wrong, 5, source="d")
    observe_commit(tree, [1, 4, 7], {"d": Noting()})
    assert seen == [(1, True), (2, False), (3, False), (4, True)]
    assert tree.size == 6


def test_its_classes_tell_what_it_goes_by() -> None:
    model = AcceptanceModel()
    before = model.classes()
    assert len({(each.rank, each.above) for each in before}) == len(before) == 18
    sure = node(math.log(0.95))
    for _ in range(40):
        model.observe(sure, True)
    (changed,) = [each for each, old in zip(model.classes(), before, strict=True) if each != old]
    assert (changed.rank, changed.above, changed.acceptance) == (0, 0.9, model.probability(sure))
    assert changed.observations > 40


class TestOneOfAKind:
    """A drafter that lasts for one request."""

    def test_it_begins_with_what_is_known_of_its_kind(self) -> None:
        kind = AcceptanceModel()
        for _ in range(300):
            kind.observe(node(-0.1), False)
        model = AcceptanceModel(kind)
        assert model.probability(node(-0.1)) == pytest.approx(kind.probability(node(-0.1)), rel=0.05, abs=1e-3)
        assert model.next_probability() == pytest.approx(kind.next_probability(), abs=1e-3)
        assert AcceptanceModel().probability(node(-0.1)) > 0.5 > model.probability(node(-0.1))

    def test_it_learns_for_itself_and_for_its_kind(self) -> None:
        kind = AcceptanceModel()
        for _ in range(300):
            kind.observe(node(-0.1), False)
        before = kind.probability(node(-0.1))
        first, second = AcceptanceModel(kind), AcceptanceModel(kind)
        for _ in range(40):
            first.observe(node(-0.1), True)
        assert first.probability(node(-0.1)) > 0.8
        assert before < kind.probability(node(-0.1)) < 0.4
        assert second.probability(node(-0.1)) < 0.1
