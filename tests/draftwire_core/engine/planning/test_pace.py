"""Sequences that share steps keep their pace, whatever the drafts of the others are worth."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_core.engine.planning.acceptance_model import AcceptanceModel
from draftwire_core.engine.planning.pace import Pace, PaceLimit
from draftwire_core.engine.planning.planner import Candidate, Planner
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.tree.token_tree import Node, TokenTree


class Certain(AcceptanceModel):
    """Uses a node's log_prob as its probability."""

    def probability(self, node: Node) -> float:
        return node.log_prob


STEEP = StepCost([1, 65], [0.010, 0.010 + 64 * 0.001])
"""A row costs a tenth of a step's fixed part."""


def planner_of(share: float = 0.9, cost: StepCost = STEEP) -> Planner:
    planner = Planner(cost, 64, share)
    planner.models["d"] = Certain()
    return planner


def sequence(probability: float, length: int, pace: Pace, *, always: bool = False) -> Candidate:
    tree = TokenTree(1, 0)
    node = tree.root
    for token in range(length):
        node, _ = tree.add(node, token, probability, "d")
    return Candidate(tree, {}, 32, 1000, pace=pace, always_draft=always)


def rates(planner: Planner, lengths: list[int], steps: int = 400) -> list[float]:
    """Returns the speed of each sequence over plain decoding where drafts of these lengths are always right."""
    paces = [Pace() for _ in lengths]
    tokens, plain = [0] * len(lengths), 0.0
    for _ in range(steps):
        plan = planner.plan([sequence(1.0, length, pace) for length, pace in zip(lengths, paces, strict=True)])
        due = planner.due(plan)
        plain += plan.seconds / plan.plain_seconds
        for index, (pace, nodes) in enumerate(zip(paces, plan.nodes, strict=True)):
            tokens[index] += 1 + len(nodes)
            pace.settle(1 + len(nodes), due)
    return [count / plain for count in tokens]


def test_an_undrafted_request_beside_perfect_drafts_keeps_nine_tenths_of_its_speed() -> None:
    *drafted, first, second = rates(planner_of(), [6, 6, 6, 6, 0, 0])
    assert min(first, second) > 0.89
    assert min(drafted) > 1.05
    *drafted, unprotected, _ = rates(planner_of(0.0), [6, 6, 6, 6, 0, 0])
    assert unprotected < 0.5 and min(drafted) > 2.5


def test_requests_that_all_gain_are_not_held_back() -> None:
    assert rates(planner_of(), [6] * 6) == rates(planner_of(0.0), [6] * 6)
    assert rates(planner_of(), [8]) == rates(planner_of(0.0), [8])


def test_what_a_request_is_ahead_lets_others_draft() -> None:
    steep = StepCost([1, 65], [0.010, 0.010 + 64 * 0.004])
    plans = [
        planner_of(cost=steep).plan([sequence(1.0, 20, Pace()), sequence(0.0, 0, Pace(ahead))])
        for ahead in (-0.5, 0.0, 0.4, 4.0)
    ]
    counts = [len(plan.nodes[0]) for plan in plans]
    assert counts[0] == 0 < counts[1] < counts[2] < counts[3] == 20


def test_drafts_of_its_own_slow_down_nobody_else() -> None:
    """A lone sequence is planned for by what its nodes are worth, however far behind it is."""
    assert planner_of().plan([sequence(0.9, 4, Pace(-1.0))]).nodes[0]


def test_a_request_that_drafts_in_any_case_is_not_protected_and_not_limited() -> None:
    planner = planner_of()
    plan = planner.plan([sequence(0.1, 5, Pace(), always=True), sequence(0.9, 5, Pace()), sequence(0.0, 0, Pace(-0.5))])
    assert [len(nodes) for nodes in plan.nodes] == [5, 0, 0]


def test_nobody_waits_for_the_drafts_of_others_longer_than_its_share_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = planner_of(cost=StepCost([1, 64], [0.010, 0.010]))

    class Due:
        expansion = 1, 8

        def expected_wait(self, now: float) -> float:
            return 0.002

        def finished(self, length: int) -> bool:
            return False

    monkeypatch.setattr(planner.models["d"], "expected", lambda rank: 0.9)
    waiting = Candidate(TokenTree(1, 0), {"d": Due()}, 32, 1000)  # type: ignore[dict-item]
    for ahead, expected in ((-0.5, 0.0), (1.0, 0.002)):
        candidates = [waiting, sequence(0.0, 0, Pace(ahead))]
        assert planner.worthwhile_wait(planner.plan(candidates), candidates, 0.0) == expected
    assert planner.worthwhile_wait(planner.plan([waiting]), [waiting], 0.0) == 0.002


def test_a_pace_is_bounded() -> None:
    pace = Pace()
    for _ in range(100):
        pace.settle(0, 0.9)
    assert pace.ahead == -3.0
    for _ in range(100):
        pace.settle(3, 0.9)
    assert pace.ahead == 4.0


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_each_keeps_its_share_of_every_plan(seed: int) -> None:
    rng = random.Random(seed)
    candidates = [
        sequence(rng.uniform(0.3, 1.0), rng.randint(0, 6), Pace(rng.uniform(-3, 4))) for _ in range(rng.randint(1, 5))
    ]
    planner = planner_of(rng.choice([0.5, 0.9, 1.0]), StepCost([1, 65], [0.01, rng.uniform(0.011, 0.3)]))
    plan = planner.plan(candidates)
    due = planner.due(plan)
    drafted = [index for index, nodes in enumerate(plan.nodes) if nodes]
    for index, (tokens, candidate) in enumerate(zip(plan.expected, candidates, strict=True)):
        if drafted and drafted != [index]:
            assert tokens + candidate.pace.allowance >= due - 1e-9
    assert plan.expected_tokens / plan.seconds >= len(candidates) / plan.plain_seconds - 1e-9


def test_the_least_is_found_while_nodes_are_added() -> None:
    """The limit after each node equals the least over all protected sequences, those aside whose nodes are all there
    are."""
    rng = random.Random(5)
    for _ in range(200):
        tokens = {index: rng.uniform(0, 5) for index in range(4)}
        limit, added = PaceLimit(tokens, 1.0, 1.0), []
        for _ in range(12):
            index, probability = rng.randrange(5), rng.random()
            limit.add(index, probability)
            added.append(index)
            if index in tokens:
                tokens[index] += probability
            least = min(count for other, count in tokens.items() if set(added) != {other})
            assert limit.allows(least - 1e-9) and not limit.allows(least + 1e-9)
