"""The nodes that are worth verifying, and the proposals that are worth waiting for."""

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_core.engine.planning.acceptance_model import AcceptanceModel
from draftwire_core.engine.planning.drafter_timing import DrafterTiming, ProposalClock
from draftwire_core.engine.planning.planner import Candidate, Planner
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.tree.proposal import Proposal
from draftwire_core.engine.tree.token_tree import Node, TokenTree


class Fixed(AcceptanceModel):
    """Uses a node's log_prob as its probability."""

    def probability(self, node: Node) -> float:
        return node.log_prob

    def next_probability(self) -> float:
        return 0.8


class Due(ProposalClock):
    """A clock that expects the next proposal after a given time."""

    def __init__(self, wait: float | None):
        super().__init__(DrafterTiming())
        self._wait = wait

    def expected_wait(self, now: float) -> float | None:
        return self._wait


def planner_of(cost: StepCost, max_rows: int = 64) -> Planner:
    planner = Planner(cost, max_rows)
    planner.models["d"] = Fixed()
    return planner


def chain(probabilities: list[float], root: int = 0) -> TokenTree:
    tree = TokenTree(1, root)
    node = tree.root
    for token, probability in enumerate(probabilities):
        node, _ = tree.add(node, token, probability, "d")
    return tree


def candidate(tree: TokenTree, max_nodes: int = 32, max_position: int = 1000, wait: float | None = None) -> Candidate:
    return Candidate(tree, {"d": Due(wait)}, max_nodes, max_position)


def proposed(parent_ids: Sequence[int], *, last: bool = False) -> Proposal:
    return Proposal(1, 1, [0] * len(parent_ids), parent_ids, last=last)


FREE = StepCost([1, 64], [0.010, 0.010])
DEAR = StepCost([1, 2, 64], [0.010, 0.020, 0.640])
LINEAR = StepCost([1, 65], [0.010, 0.010 + 64 * 0.002])


def tokens(nodes: list[Node]) -> list[int]:
    return [node.token for node in nodes]


def test_free_rows_take_everything_that_may_be_right() -> None:
    plan = planner_of(FREE).plan([candidate(chain([0.9, 0.8, 0.5, 0.1, 1e-9]))])
    assert tokens(plan.nodes[0]) == [0, 1, 2, 3]
    assert plan.expected_tokens == pytest.approx(1 + 0.9 + 0.72 + 0.36 + 0.036)


def test_dear_rows_take_nothing() -> None:
    plan = planner_of(DEAR).plan([candidate(chain([0.99, 0.99]))])
    assert plan.nodes == [[]] and plan.expected_tokens == 1.0 and plan.seconds == pytest.approx(0.010)


def test_the_length_of_a_chain_follows_from_its_probabilities() -> None:
    sure = planner_of(LINEAR).plan([candidate(chain([0.9] * 20))])
    unsure = planner_of(LINEAR).plan([candidate(chain([0.5] * 20))])
    hopeless = planner_of(LINEAR).plan([candidate(chain([0.05] * 20))])
    assert len(sure.nodes[0]) > len(unsure.nodes[0]) > 0 == len(hopeless.nodes[0])


@pytest.mark.parametrize(("probability", "others", "looks"), [(0.5, 0, True), (0.9, 0, False), (0.5, 1, False)])
def test_after_many_steps_with_nodes_a_plain_one_shows_its_time(probability: float, others: int, looks: bool) -> None:
    """Only where nodes gain little, and no prompt makes the step another one."""
    cost = StepCost([1, 64], [0.010, 0.012])
    planner = planner_of(cost)
    plan = planner.plan([candidate(chain([probability]))], others)
    assert plan.nodes[0] and not plan.full
    for _ in range(48):
        cost.observe(2, plan.seconds)
    plan = planner.plan([candidate(chain([probability]))], others)
    assert (not plan.nodes[0], plan.full) == (looks, looks)
    cost.observe(1, 0.005)
    assert planner.plan([candidate(chain([probability]))], others).nodes[0]


def test_no_node_begins_a_block_of_rows_that_costs_more_than_it_gains() -> None:
    """A curve through powers of two alone hides it."""
    taken = []
    for cost in (
        StepCost([1, 8, 16, 32], [0.010, 0.011, 0.012, 0.0205]),
        StepCost([1, 8, 16, 17, 32], [0.010, 0.011, 0.012, 0.020, 0.0205]),
    ):
        planner = planner_of(cost)
        planner.plain_share = 0.0
        plan = planner.plan([candidate(chain([0.9])) for _ in range(12)])
        taken.append(sum(map(len, plan.nodes)))
    assert taken == [12, 16 - 12]


def test_a_drafter_that_nobody_knows_is_not_verified() -> None:
    tree = TokenTree(1, 0)
    tree.add(tree.root, 1, 0.9, "gone")
    assert planner_of(FREE).plan([candidate(tree)]).nodes == [[]]


def test_rows_go_to_the_sequence_that_is_likelier_right() -> None:
    plan = planner_of(FREE, max_rows=6).plan([candidate(chain([0.9, 0.9, 0.9])), candidate(chain([0.7, 0.5]))])
    assert [tokens(nodes) for nodes in plan.nodes] == [[0, 1, 2], [0]]


def test_limits_are_kept() -> None:
    trees = [chain([0.9] * 10) for _ in range(3)]
    planner = planner_of(FREE, max_rows=12)
    plan = planner.plan([candidate(trees[0], max_nodes=2), candidate(trees[1], max_position=3), candidate(trees[2])])
    assert [len(nodes) for nodes in plan.nodes] == [2, 3, 4]
    assert [len(nodes) for nodes in planner.plan([candidate(trees[2])], other_rows=8).nodes] == [3]
    assert planner.plan([candidate(trees[2], max_nodes=0)]).nodes == [[]]
    assert planner.plan([candidate(trees[2])], other_rows=100).nodes == [[]]
    assert [len(nodes) for nodes in planner.plan([candidate(trees[2])], max_rows=5).nodes] == [4]
    assert [len(nodes) for nodes in planner.plan([candidate(trees[2])], max_rows=50).nodes] == [10]
    assert planner.plan([candidate(trees[2])], other_rows=4, max_rows=2).nodes == [[]]


def test_a_sequence_that_always_drafts_has_its_nodes_taken_whatever_they_cost() -> None:
    planner = planner_of(DEAR, max_rows=6)
    always, usual = candidate(chain([0.5, 1e-9])), candidate(chain([0.1]))
    always.always_draft = True
    plan = planner.plan([usual, always])
    assert [tokens(nodes) for nodes in plan.nodes] == [[], [0, 1]]
    assert plan.expected_tokens == pytest.approx(2.5)
    unknown = TokenTree(1, 0)
    unknown.add(unknown.root, 7, 0.9, "forgotten")
    asking = candidate(unknown)
    asking.always_draft = True
    assert [tokens(nodes) for nodes in planner.plan([asking]).nodes] == [[7]]


def test_what_is_always_taken_leaves_the_others_what_they_are_worth() -> None:
    planner = planner_of(FREE, max_rows=5)
    always, usual = candidate(chain([0.1] * 2), max_nodes=1), candidate(chain([0.9, 0.9, 0.9]))
    always.always_draft = True
    assert [tokens(nodes) for nodes in planner.plan([usual, always]).nodes] == [[0, 1], [0]]


def test_a_step_of_sequences_that_always_draft_waits_for_the_drafters() -> None:
    planner = planner_of(DEAR)
    clock = ProposalClock(DrafterTiming(), always=True)
    empty = Candidate(TokenTree(1, 0), {"d": clock}, 8, 1000, always_draft=True)
    usual = candidate(TokenTree(1, 0))
    assert planner.worthwhile_wait(planner.plan([empty]), [empty], 0.0) == 0  # nothing was asked
    clock.asked(1, 0.0)
    assert planner.worthwhile_wait(planner.plan([empty]), [empty], 0.0) > 0
    assert planner.worthwhile_wait(planner.plan([empty, usual]), [empty, usual], 0.0) == 0
    none = Candidate(TokenTree(1, 0), {"d": clock}, 0, 1000, always_draft=True)
    assert planner.worthwhile_wait(planner.plan([none]), [none], 0.0) == 0
    full = Candidate(chain([0.1]), {"d": clock}, 8, 1000, always_draft=True)
    assert planner.worthwhile_wait(planner.plan([full]), [full], 0.0) == 0


def test_the_rows_of_prompts_make_no_node_cheaper() -> None:
    """A step made long by prompts is no reason to verify nodes that are not worth it in a step without prompts."""
    trees = [candidate(chain([0.6, 0.6])) for _ in range(4)]
    alone = planner_of(LINEAR).plan(trees)
    beside = planner_of(LINEAR, max_rows=256).plan(trees, other_rows=40)
    assert [len(nodes) for nodes in beside.nodes] == [len(nodes) for nodes in alone.nodes] == [1, 1, 1, 1]
    assert beside.seconds == pytest.approx(alone.seconds + 40 * 0.002)
    assert beside.expected_tokens == alone.expected_tokens


def test_nodes_pay_for_the_prompts_that_they_delay() -> None:
    tree = candidate(chain([0.9] * 12))
    lengths = [len(planner_of(LINEAR).plan([tree], 16, prompts=prompts).nodes[0]) for prompts in (0, 1, 2, 4, 8)]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[2] > lengths[-1] == 0
    assert [len(nodes) for nodes in planner_of(FREE).plan([tree], 16, prompts=100).nodes] == [12]  # delays no prompt
    assert planner_of(LINEAR).plan([tree], 16, prompts=1).expected_tokens < 1 + 9  # prompts are no tokens


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_no_other_choice_of_nodes_does_better(seed: int) -> None:
    rng = random.Random(seed)
    trees = [TokenTree(1, 0) for _ in range(2)]
    for tree in trees:
        for token in range(rng.randint(0, 4)):
            parent = rng.choice([tree.root, *tree.nodes()])
            tree.add(parent, token, rng.uniform(0.05, 0.95), "d")
    slopes = [rng.uniform(0.0005, 0.006) for _ in range(3)]
    cost = StepCost([2, 4, 7, 20], list(itertools.accumulate([0.01, 2 * slopes[0], 3 * slopes[1], 13 * slopes[2]])))
    planner = planner_of(cost)
    planner.plain_share = 0.0
    plan = planner.plan([candidate(tree) for tree in trees])

    def value(node: Node) -> float:
        return 1.0 if node.parent is None else node.log_prob * value(node.parent)

    for tree, chosen in zip(trees, plan.nodes, strict=True):
        for index, node in enumerate(chosen):
            assert node.parent is tree.root or node.parent in chosen[:index]
    everything = [node for tree in trees for node in tree.nodes()]
    best = 0.0
    for size in range(len(everything) + 1):
        for subset in itertools.combinations(everything, size):
            members = {id(node) for node in subset}
            if all(node.parent.parent is None or id(node.parent) in members for node in subset):
                best = max(best, (2 + sum(map(value, subset))) / cost.seconds(2 + size))
    assert plan.expected_tokens / plan.seconds == pytest.approx(best)


def test_waits_for_what_is_worth_it_and_no_longer() -> None:
    for wait, expected in [(0.001, 0.001), (0.5, 0.0), (None, 0.0)]:
        planner = planner_of(FREE)
        candidates = [candidate(TokenTree(1, 0), wait=wait)]
        assert planner.worthwhile_wait(planner.plan(candidates), candidates, 0.0) == expected


def test_waits_for_nothing_that_cannot_be_used() -> None:
    planner = planner_of(FREE)
    full = [candidate(chain([0.9, 0.9]), max_nodes=2, wait=0.0001)]
    assert planner.worthwhile_wait(planner.plan(full), full, 0.0) == 0.0
    waiting = [candidate(chain([0.9, 0.9]), wait=0.0001)]
    assert planner.worthwhile_wait(planner.plan(waiting), waiting, 0.0) == 0.0001
    assert planner.worthwhile_wait(planner.plan(waiting, max_rows=3), waiting, 0.0) == 0.0
    without = [Candidate(TokenTree(1, 0), {}, 8, 100)]
    assert planner.worthwhile_wait(planner.plan(without), without, 0.0) == 0.0
    last = [candidate(chain([]), max_position=0, wait=0.0001)]  # a request ends with one more token
    assert planner.worthwhile_wait(planner.plan(last), last, 0.0) == 0.0
    reached = [candidate(chain([0.9]), max_position=1, wait=0.0001)]
    assert planner.worthwhile_wait(planner.plan(reached), reached, 0.0) == 0.0
    one_more = [candidate(chain([0.9]), max_position=2, wait=0.0001)]
    assert planner.worthwhile_wait(planner.plan(one_more), one_more, 0.0) == 0.0001


def forked() -> TokenTree:
    """A likely node without children beside an unlikely one that has a child."""
    tree = TokenTree(1, 0)
    tree.add(tree.root, 1, 0.6, "d")
    unlikely, _ = tree.add(tree.root, 2, 0.1, "d")
    tree.add(unlikely, 3, 0.5, "d")
    return tree


def test_the_next_node_is_expected_below_the_likeliest_one_without_children() -> None:
    planner = planner_of(FREE)
    candidates = [candidate(forked(), wait=0.002)]
    plan = planner.plan(candidates)
    assert plan.ends == [pytest.approx([0.6, 0.05])]
    # 0.6 * 0.8 more tokens than 1.75 pay for a fifth of a step; 0.05 * 0.8 would not.
    assert planner.worthwhile_wait(plan, candidates, 0.0) == 0.002


def test_a_drafter_that_adds_to_several_nodes_is_worth_a_longer_wait() -> None:
    planner = planner_of(FREE)
    tree = TokenTree(1, 0)
    for token in 1, 2, 3:
        tree.add(tree.root, token, 0.3, "d")
    waits = []
    for parents in 1, 3:
        candidates = [candidate(tree, wait=0.003)]
        for _ in range(30):
            candidates[0].clocks["d"].arrived(proposed(range(parents)), 0.0)
        waits.append(planner.worthwhile_wait(planner.plan(candidates), candidates, 0.0))
    assert waits == [0.0, 0.003]


def test_siblings_are_worth_waiting_for_too() -> None:
    planner = planner_of(FREE)
    waits = []
    for children in 1, 3:
        candidates = [candidate(TokenTree(1, 0), wait=0.0082)]
        for _ in range(30):
            candidates[0].clocks["d"].arrived(proposed([0] * children), 0.0)
        waits.append(planner.worthwhile_wait(planner.plan(candidates), candidates, 0.0))
    assert waits == [0.0, 0.0082]


def test_where_only_a_chain_is_verified_siblings_are_worth_nothing() -> None:
    planner = planner_of(FREE)
    candidates = [candidate(TokenTree(1, 0), wait=0.0082)]
    candidates[0].chain = True
    for _ in range(30):
        candidates[0].clocks["d"].arrived(proposed([0] * 3), 0.0)
    assert planner.worthwhile_wait(planner.plan(candidates), candidates, 0.0) == 0.0


def test_useless_nodes_of_another_drafter_do_not_hide_the_root() -> None:
    planner = planner_of(FREE)
    tree = TokenTree(1, 0)
    tree.add(tree.root, 1, 1e-6, "d")
    candidates = [candidate(tree, wait=0.001)]
    assert planner.worthwhile_wait(planner.plan(candidates), candidates, 0.0) == 0.001


def test_a_drafter_that_has_finished_is_not_waited_for() -> None:
    planner = planner_of(FREE)
    candidates = [candidate(chain([0.9]), wait=0.0001)]
    clock = candidates[0].clocks["d"]
    for last, expected in [(True, 0.0), (False, 0.0001)]:
        clock.arrived(proposed([0], last=last), 0.0)
        assert planner.worthwhile_wait(planner.plan(candidates), candidates, 0.0) == expected
    clock.arrived(proposed([0], last=True), 0.0)
    candidates[0].tree.commit([0])
    assert planner.worthwhile_wait(planner.plan(candidates), candidates, 0.0) == 0.0001, "a verdict came"


def test_dear_rows_are_not_waited_for() -> None:
    planner = planner_of(DEAR)
    candidates = [candidate(TokenTree(1, 0), wait=0.0001)]
    assert planner.worthwhile_wait(planner.plan(candidates), candidates, 0.0) == 0.0


def test_what_all_drafters_but_one_have_guessed() -> None:
    planner = planner_of(FREE)
    planner.models["other"] = Fixed()
    tree = TokenTree(1, 0)
    first, _ = tree.add(tree.root, 1, 0.5, "d")
    tree.add(tree.root, 2, 0.25, "d")
    tree.add(tree.root, 3, 0.125, "other")
    tree.add(first, 4, 0.5, "d")
    tree.add(first, 5, 0.25, "forgotten")
    assert planner.guessed(tree, "nobody") == [0.875, 0.25]
    assert planner.guessed(tree, "other") == [0.75, 0.25]
    assert planner.guessed(tree, "d") == [0.125]
    assert planner.guessed(TokenTree(1, 0), "d") == []


def test_what_was_learned_of_a_drafter_stays_until_it_is_forgotten() -> None:
    planner = Planner(FREE, 8)
    planner.add_source("d")
    model = planner.models["d"]
    planner.add_source("d")
    assert planner.models["d"] is model
    planner.remove_source("d")
    planner.remove_source("d")
    assert not planner.models and not planner.timings
