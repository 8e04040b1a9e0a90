"""A drafter with too little memory is slower, but its guesses are the same."""

import random
from collections.abc import Hashable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_core.engine.drafters.drafter import DrafterFullError, DraftSpec, OutOfSyncError
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.proposal import Proposal, ProposalReader
from draftwire_core.engine.tree.token_tree import Node, TokenTree
from tests.harness.engine.engines import VOCABULARY, packed, random_tokens
from tests.harness.engine.last_proposals import count_last_proposals
from tests.harness.engine.special_models import quick_model

CREDIT = 16
PROMPTS = [random_tokens(length, seed=length) for length in (40, 3, 25, 14, 1, 30)]
LARGEST = 100
"""Committed length at which every sequence ends."""


@cache
def model_of(slots: int) -> PackedModel:
    return packed(quick_model(), slots)


def spec_of(number: int) -> DraftSpec:
    sampling = SamplingParams(temperature=1.0 if number % 2 else 0.0, seed=number)
    return DraftSpec(PROMPTS[number], sampling, CREDIT, LARGEST)


def ids_of(node: Node) -> dict[int, object]:
    return {child.id: (child.token, ids_of(child)) for child in node.children.values()}


class Mirror:
    """The verifier's copy of a sequence, which records each guess with the tokens before it."""

    def __init__(self, spec: DraftSpec):
        self.tokens = list(spec.tokens)
        self.tree = TokenTree(len(self.tokens), self.tokens[-1])
        self.reader = ProposalReader("draft", CREDIT, VOCABULARY)
        self.guesses: dict[tuple[int, ...], int] = {}
        self.nodes: dict[int, Node] = {}

    def commit(self, rng: random.Random) -> list[int]:
        """Returns the tokens of a verdict: a path down the tree, then tokens outside of it, if there is room."""
        tokens: list[int] = []
        node = self.tree.root
        while node.children and rng.random() < 0.6:
            node = rng.choice(list(node.children.values()))
            tokens.append(node.token)
        if not tokens or rng.random() < 0.7:
            tokens.append(rng.randrange(3, VOCABULARY))
        tokens = tokens[: LARGEST - 1 - len(self.tokens)]
        if tokens:
            self.tree.commit(tokens)
            self.tokens += tokens
        return tokens


class Pair:
    """A drafter and the mirrors of its trees."""

    def __init__(self, slots: int):
        self.drafter = DraftModelDrafter(model_of(slots))
        self.mirrors: dict[int, Mirror] = {}

    def open(self, number: int) -> None:
        self.drafter.open(number, spec_of(number))
        self.mirrors[number] = Mirror(spec_of(number))

    def commit(self, number: int, rng: random.Random) -> None:
        mirror = self.mirrors[number]
        tokens = mirror.commit(rng)
        if tokens:
            self.drafter.commit(number, len(mirror.tokens), tokens)

    def close(self, number: int) -> None:
        self.drafter.close(number)
        self.mirrors.pop(number, None)

    def grow(self) -> dict[Hashable, Proposal]:
        """Runs one step, and returns its proposals; one that a verifier would refuse fails the test."""
        proposals = self.drafter.grow().proposals
        for number, proposal in proposals.items():
            mirror = self.mirrors[number]
            count = mirror.reader.merge(proposal, mirror.tree, mirror.tokens)
            assert (count.added, count.stale) == (len(proposal.token_ids), 0)
            for offset, (token, parent_id) in enumerate(zip(proposal.token_ids, proposal.parent_ids, strict=True)):
                parent = mirror.nodes[parent_id] if parent_id else mirror.tree.root
                node = parent.children[token]
                mirror.nodes[proposal.first_node_id + offset] = node
                node.id = proposal.first_node_id + offset
                if node.rank == 0:
                    path = [each.token for each in parent.path_from(mirror.tree.root)]
                    mirror.guesses[(*mirror.tokens, *path)] = token
        return proposals

    def grow_until_idle(self) -> None:
        for _ in range(2000):
            if not self.drafter.busy:
                return
            self.grow()
        raise AssertionError("the drafter finds no rest")

    def check(self) -> None:
        """Checks that trees match, that the slots in use are those of computed tokens and nodes, each held once,
        and that no sequence waits that could run."""
        queue = self.drafter._queue
        held: list[int] = []
        for draft in queue:
            held += draft.slots.array().tolist()
            held += [node.slot for node in draft.tree.nodes() if node.slot >= 0]
        assert len(set(held)) == len(held) == self.drafter.model.pool.used
        assert queue.running or not queue.waiting
        waiting = list(queue.waiting)
        queue.admit()
        assert list(queue.waiting) == waiting
        for number, mirror in self.mirrors.items():
            draft = queue.find(number)
            assert draft is not None and draft.tokens == mirror.tokens
            assert ids_of(draft.tree.root) == ids_of(mirror.tree.root)


def same_guess(number: int, prefix: tuple[int, ...]) -> int | None:
    """Returns the first guess after these tokens of a drafter with enough memory."""
    drafter = DraftModelDrafter(model_of(4000))
    spec = spec_of(number)
    drafter.open(0, DraftSpec(prefix, spec.sampling, 1, LARGEST))
    proposal = drafter.grow().proposals.get(0)
    drafter.close(0)
    return proposal.token_ids[0] if proposal else None


def test_every_sequence_is_drafted_for_in_its_turn_and_rightly() -> None:
    rng = random.Random(3)
    pair = Pair(LARGEST + CREDIT + 30)
    mirrors = {}
    for number in range(len(PROMPTS)):
        pair.open(number)
        mirrors[number] = pair.mirrors[number]
    for number in range(len(PROMPTS)):
        for _ in range(18):
            pair.grow_until_idle()
            pair.check()
            for other in list(pair.mirrors):
                pair.commit(other, rng)
        pair.close(number)
        pair.check()
    assert pair.drafter.preemptions > 0
    assert pair.drafter.model.pool.used == 0
    for number, mirror in mirrors.items():
        assert mirror.guesses
        for prefix in rng.sample(sorted(mirror.guesses), min(10, len(mirror.guesses))):
            assert mirror.guesses[prefix] == same_guess(number, prefix)


def test_nodes_whose_slots_were_given_up_are_computed_again_and_not_sent_again() -> None:
    pair = Pair(LARGEST + CREDIT)
    pair.open(1)
    pair.grow_until_idle()
    before = ids_of(pair.mirrors[1].tree.root)
    assert before
    pair.drafter.model.pool.give_back(pair.drafter._queue.running[1].give_up())
    assert pair.drafter.busy
    pair.grow_until_idle()
    pair.check()
    assert {**ids_of(pair.mirrors[1].tree.root), **before} == ids_of(pair.mirrors[1].tree.root)
    # A verdict along the tree keeps the slots of its path, so no token is pending.
    node = next(iter(pair.mirrors[1].tree.root.children.values()))
    pair.mirrors[1].tokens.append(node.token)
    pair.mirrors[1].tree.commit([node.token])
    pair.drafter.commit(1, len(pair.mirrors[1].tokens), [node.token])
    assert pair.drafter._queue.running[1].pending == 0
    pair.check()
    pair.close(1)


def test_the_last_proposal_before_a_verdict_says_so() -> None:
    assert count_last_proposals(Pair(4000), 20) > 10


def test_a_verdict_that_prunes_may_let_the_next_one_in() -> None:
    drafter = DraftModelDrafter(model_of(150))
    drafter.open(0, DraftSpec(random_tokens(30), SamplingParams(temperature=0.0), CREDIT, LARGEST))
    while drafter.busy:
        drafter.grow()
    nodes = drafter.model.pool.used - 30
    assert nodes >= 2
    drafter.open(1, DraftSpec(random_tokens(57 - nodes), SamplingParams(temperature=0.0), CREDIT, LARGEST))
    assert not drafter.busy  # one slot too few
    tree = drafter._queue.running[0].tree
    drafter.commit(0, 31, [next(token for token in range(3, 300) if token not in tree.root.children)])
    assert list(drafter._queue.running) == [0, 1]
    for key in (0, 1):
        drafter.close(key)


def test_a_tree_that_never_fits_is_refused() -> None:
    drafter = DraftModelDrafter(model_of(116))
    drafter.open(0, DraftSpec([5], SamplingParams(), 115, 1000))
    with pytest.raises(DrafterFullError, match="a tree needs 116 KV slots, and the pool has only 116"):
        drafter.open(1, DraftSpec([5], SamplingParams(), 116, 50))
    assert drafter.sequences == 1
    drafter.close(0)


def test_commits_that_do_not_fit_the_tokens() -> None:
    drafter = DraftModelDrafter(model_of(116))
    drafter.open(0, DraftSpec([5, 6], SamplingParams(), CREDIT, 50))
    with pytest.raises(OutOfSyncError):
        drafter.commit(0, 4, [7])
    with pytest.raises(KeyError):
        drafter.commit(1, 3, [7])
    drafter.close(0)


events = st.lists(
    st.tuples(
        st.sampled_from(["open", "commit", "commit", "grow", "grow", "grow", "idle", "close"]), st.integers(0, 5)
    ),
    max_size=60,
)


@given(events, st.sampled_from([116, 150, 250]), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_whatever_happens_trees_are_mirrors_and_slots_add_up(
    script: list[tuple[str, int]], slots: int, seed: int
) -> None:
    rng = random.Random(seed)
    pair = Pair(slots)
    try:
        for event, number in script:
            if event == "open":
                pair.open(number)
            elif event == "commit" and number in pair.mirrors:
                pair.commit(number, rng)
            elif event == "grow":
                pair.grow()
            elif event == "idle":
                pair.grow_until_idle()
            elif event == "close":
                pair.close(number)
            pair.check()
        pair.grow_until_idle()
        pair.check()
    finally:
        for number in range(6):
            pair.close(number)
    assert pair.drafter.model.pool.used == 0
