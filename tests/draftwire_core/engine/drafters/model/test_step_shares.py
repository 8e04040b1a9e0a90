"""The shares of a drafting step that verifiers get."""

import math
from collections import Counter

from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter
from draftwire_core.engine.drafters.model.step_shares import StepShares
from draftwire_core.engine.drafters.tree_growth import GrowingTree, TreeGrowth
from draftwire_core.engine.kv.fair_shares import SOLE, ServedVerifier
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.token_tree import Node, TokenTree
from tests.harness.engine.engines import packed, random_tokens
from tests.harness.engine.special_models import quick_model

A, B = ServedVerifier("a", 1.0, 1), ServedVerifier("b", 1.0, 2)
FREE, DEAR = StepCost([1], [1.0]), StepCost([1, 100], [1.0, 100.0])
SURE, UNSURE = math.log(0.95), math.log(0.3)


def tree_of(growth: TreeGrowth, log_probs: list[float]) -> tuple[GrowingTree, list[Node]]:
    """Returns a tree whose root has been through the model, and the root's children."""
    tree = GrowingTree(TokenTree(10, 1), 64, 1000)
    tree.tree.root.slot = 1
    return tree, growth.children(tree, tree.tree.root, range(1, len(log_probs) + 1), log_probs)


def test_alone_it_is_as_ever() -> None:
    growth = TreeGrowth(DEAR)
    trees = [tree_of(growth, [SURE, UNSURE])[0] for _ in range(3)]
    shares = StepShares(growth)
    for most in range(6):
        assert shares.expansions([(B, tree) for tree in trees], 2, most) == growth.expansions(trees, 2, most)


def test_rows_that_cost_nothing_are_for_all() -> None:
    growth = TreeGrowth(FREE)
    trees = [tree_of(growth, [SURE, UNSURE])[0] for _ in range(3)]
    chosen = StepShares(growth).expansions([(A, trees[0]), (B, trees[1]), (B, trees[2])], 0, 100)
    assert chosen == growth.expansions(trees, 0, 100)
    assert len(chosen) == 6


def test_scarce_rows_are_divided_and_the_best_of_each_comes_first() -> None:
    growth = TreeGrowth(FREE)
    trees = [tree_of(growth, [UNSURE, UNSURE])[0], *(tree_of(growth, [SURE, UNSURE])[0] for _ in range(8))]
    owned = [(A, trees[0]), *((B, tree) for tree in trees[1:])]
    assert {index for index, _ in growth.expansions(trees, 0, 4)} <= set(range(1, 9)), "the best are all one's"
    chosen = StepShares(growth).expansions(owned, 0, 4)
    assert [index for index, _ in chosen].count(0) == 2
    assert all(node.rank == 0 for index, node in chosen if index)
    assert [index for index, _ in StepShares(growth).expansions(owned, 0, 8)].count(0) == 2, "it wants no more"


def test_a_verifier_wants_what_it_would_have_alone() -> None:
    """Nodes that are not worth a row are not drafted, whatever the verifier's share."""
    growth = TreeGrowth(StepCost([1, 2, 3, 100], [1.0, 1.1, 4.0, 100.0]))
    mine, _ = tree_of(growth, [SURE, UNSURE, UNSURE])
    alone = len(growth.expansions([mine], 0, 100))
    others = [tree_of(growth, [SURE, SURE])[0] for _ in range(8)]
    chosen = StepShares(growth).expansions([(A, mine), *((B, tree) for tree in others)], 0, 100)
    assert 0 < [index for index, _ in chosen].count(0) <= alone


def test_nobody_waits_for_others_rows_longer_than_its_share_allows() -> None:
    """A step of one row takes 1, of 10 takes 2, of 100 takes 11; with half of the drafter, one row may take 2."""
    growth = TreeGrowth(StepCost([1, 10, 100], [1.0, 2.0, 11.0]))
    trees = [tree_of(growth, [SURE])[0] for _ in range(65)]
    owned = [(A, trees[0]), *((B, tree) for tree in trees[1:])]
    assert len(growth.expansions(trees, 0, 200)) > 10
    chosen = StepShares(growth).expansions(owned, 0, 200)
    assert (0, next(iter(trees[0].tree.root.children.values()))) in chosen
    assert len(chosen) == 10
    quarter = [(A._replace(weight=1 / 3), trees[0]), *owned[1:]]
    assert 10 < len(StepShares(growth).expansions(quarter, 0, 200)) < 65


def test_committed_tokens_are_divided() -> None:
    shares = StepShares(TreeGrowth(FREE))
    assert shares.committed([(A, 1), (B, 500), (B, 0), (B, 20)], 16) == {A: 1, B: 15}
    assert shares.committed([(A, 40), (B, 500)], 16) == {A: 8, B: 8}
    assert shares.committed([(A, 4), (B, 5)], 16) == {A: 4, B: 5}
    assert shares.committed([(A, 0)], 16) == {}


class Loaded:
    """A drafter with expensive rows that drafts for one sequence of A and eight of B; verdicts come for all at once."""

    def __init__(self, a: ServedVerifier, b: ServedVerifier):
        growth = TreeGrowth(DEAR)
        growth.cost.observe = lambda *_: None  # type: ignore[method-assign] # this machine's times are no concern
        self.drafter = DraftModelDrafter(model(), growth)
        self.lengths: dict[int, int] = {}
        self.nodes: Counter[int] = Counter()
        self.rows: Counter[ServedVerifier] = Counter()
        for number in range(9):
            tokens = random_tokens(12, seed=number)
            verifier = b if number else a
            spec = DraftSpec(tokens, SamplingParams(temperature=0.0, seed=number), 64, 400, verifier=verifier)
            self.drafter.open(number, spec)
            self.lengths[number] = len(tokens)

    def step(self) -> None:
        busy = self.drafter.busy
        growth = self.drafter.grow()
        assert bool(growth.rows) == busy, "nothing is left unused"
        self.rows.update(growth.rows)
        for number, proposal in growth.proposals.items():
            assert isinstance(number, int)
            self.nodes[number] += len(proposal.token_ids)

    def verdicts(self) -> None:
        """Commits a draft token of each sequence, so that drafting remains worthwhile."""
        for number in self.lengths:
            draft = self.drafter._queue.find(number)
            assert draft is not None
            [token, *_] = draft.tree.root.children
            self.lengths[number] += 1
            self.drafter.commit(number, self.lengths[number], [token])

    def run(self) -> None:
        while any(draft.pending for draft in self.drafter._queue):
            self.step()
        self.nodes.clear()
        self.rows.clear()
        for _ in range(6):
            self.verdicts()
            for _ in range(6):
                self.step()

    def close(self) -> None:
        for number in self.lengths:
            self.drafter.close(number)
        assert self.drafter.model.pool.used == 0


def model() -> PackedModel:
    return packed(quick_model(), 4000)


def test_one_stream_beside_eight_has_its_share_of_the_rows() -> None:
    """With expensive rows, a sequence with a verifier of its own gets over twice the rows of one among nine."""
    first_come, fair, favoured = (Loaded(a, B) for a in (SOLE._replace(name="b", stream=2), A, A._replace(weight=3.0)))
    counts = []
    for loaded in (first_come, fair, favoured):
        loaded.run()
        counts.append(loaded.nodes[0])
        loaded.close()
    assert counts[0] * 2 < counts[1] < counts[2], counts
