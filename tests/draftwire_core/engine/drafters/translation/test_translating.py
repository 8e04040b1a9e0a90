"""A drafter whose model has another tokenizer: its tree holds the target's tokens, its KV cache the draft model's."""

import random
from collections.abc import Hashable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_core.engine.drafters.drafter import DrafterFullError, DraftSpec, OutOfSyncError
from draftwire_core.engine.drafters.translation.token_map import TokenMap
from draftwire_core.engine.drafters.translation.translating import TranslatingDrafter
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.proposal import Proposal, ProposalReader
from draftwire_core.engine.tree.token_tree import TokenTree
from tests.harness.engine.drafter_reader import DrafterReader
from tests.harness.engine.engines import packed
from tests.harness.engine.last_proposals import count_last_proposals
from tests.harness.engine.special_models import quick_model
from tests.harness.engine.translation import token_map, vocabulary
from tests.harness.models.byte_tokenizers import TEXT

CREDIT = 12
LARGEST = 160
"""Committed length at which every sequence ends."""
DRAFTS = ("draft", "fallback", "spaced")


@cache
def model_of(kind: str, slots: int, context: int = 2048) -> PackedModel:
    size = len(vocabulary(kind))
    return packed(quick_model(vocab_size=size, max_position_embeddings=context), slots)


def spec_of(number: int) -> DraftSpec:
    prompt = vocabulary("target").encode(TEXT[number % len(TEXT)].encode())[: 20 + number]
    sampling = SamplingParams(temperature=1.0 if number % 2 else 0.0, seed=number)
    return DraftSpec(prompt, sampling, CREDIT, LARGEST)


class Mirror:
    """The verifier's copy of a sequence."""

    def __init__(self, spec: DraftSpec):
        self.tokens = list(spec.tokens)
        self.tree = TokenTree(len(self.tokens), self.tokens[-1])
        self.reader = ProposalReader("draft", CREDIT, len(vocabulary("target")))

    def commit(self, rng: random.Random) -> list[int]:
        """Returns the tokens of a verdict: a path down the tree, then text or arbitrary bytes outside of it."""
        tokens: list[int] = []
        node = self.tree.root
        while node.children and rng.random() < 0.7:
            node = rng.choice(list(node.children.values()))
            tokens.append(node.token)
        if not tokens or rng.random() < 0.6:
            known = vocabulary("target")
            out = rng.choice(
                [known.encode(rng.choice(TEXT).encode()[: rng.randint(1, 6)]), [rng.randrange(len(known))]]
            )
            tokens += out
        tokens = tokens[: LARGEST - 1 - len(self.tokens)]
        if tokens:
            self.tree.commit(tokens)
            self.tokens += tokens
        return tokens


class Pair:
    """A drafter and the mirrors of its trees."""

    def __init__(self, kind: str, slots: int):
        self.drafter = TranslatingDrafter(model_of(kind, slots), token_map("target", kind))
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
        return proposals

    def grow_until_idle(self) -> None:
        for _ in range(2000):
            if not self.drafter.busy:
                return
            self.grow()
        raise AssertionError("the drafter finds no rest")

    def check(self) -> None:
        """Checks that trees match, draft tokens spell the committed text, and each slot in use is held once."""
        queue = self.drafter._queue
        held: list[int] = []
        for draft in queue:
            held += draft.slots.array().tolist()
            assert len(draft.slots) <= len(draft.tokens)
            for node in draft.tree.nodes():
                spelling = draft.spelling(node)
                held += spelling.slots
                assert len(spelling.slots) in (0, len(spelling.pieces))
        assert len(set(held)) == len(held) == self.drafter.model.pool.used
        translation = self.drafter._map
        for number, mirror in self.mirrors.items():
            draft = queue.find(number)
            assert draft.tree.committed_length == len(mirror.tokens)
            assert shape(draft.tree) == shape(mirror.tree)
            assert draft.tree.size <= CREDIT
            assert translation.draft.spell(draft.tokens) == translation.target.spell(mirror.tokens)
            for node in draft.tree.nodes():
                drafted = [piece for each in draft.spelling(node).path() for piece in each.pieces]
                begins = draft.spelling(node).path()[0].start
                path = [each.token for each in node.path_from(draft.tree.root)]
                assert translation.draft.spell([*draft.tokens[:begins], *drafted]) == translation.target.spell(
                    [*mirror.tokens, *path]
                ), "a node's draft tokens spell the text up to it"


def shape(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tuple(each.token for each in node.path_from(tree.root)) for node in tree.nodes()}


@pytest.mark.parametrize("kind", DRAFTS)
@settings(max_examples=3)
@given(seed=st.integers(0, 1000))
def test_trees_texts_and_slots_stay_true_whatever_is_committed(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    pair = Pair(kind, 2000)
    for _ in range(30):
        number = rng.randrange(4)
        if number not in pair.mirrors or rng.random() < 0.05:
            pair.open(number)
        elif rng.random() < 0.05:
            pair.close(number)
        else:
            pair.commit(number, rng)
        for _ in range(rng.randrange(4)):
            pair.grow()
        pair.check()
    pair.grow_until_idle()
    pair.check()
    for number in list(pair.mirrors):
        pair.close(number)
    assert pair.drafter.model.pool.used == 0


@pytest.mark.parametrize("kind", DRAFTS)
def test_the_last_proposal_before_a_verdict_says_so(kind: str) -> None:
    assert count_last_proposals(Pair(kind, 4000), 20) > 5


@pytest.mark.parametrize("kind", ["draft", "fallback"])  # the third has longer tokens, and needs less
def test_with_too_little_memory_each_is_drafted_for_in_its_turn(kind: str) -> None:
    rng = random.Random(5)
    pair = Pair(kind, 220)
    for number in range(3):
        pair.open(number)
    for number in range(3):
        for _ in range(15):
            pair.grow_until_idle()
            pair.check()
            for other in list(pair.mirrors):
                pair.commit(other, rng)
        pair.close(number)
        pair.check()
    assert pair.drafter._queue.preemptions > 0


@pytest.mark.parametrize("kind", DRAFTS)
def test_what_is_kept_is_as_if_it_had_been_computed_anew(kind: str) -> None:
    """The best guess after a verdict is that of a drafter that sees the text for the first time."""
    rng = random.Random(8)
    pair = Pair(kind, 2000)
    pair.open(1)
    compared = 0
    for _ in range(25):
        pair.grow_until_idle()
        pair.commit(1, rng)
        mirror = pair.mirrors[1]
        draft = pair.drafter._queue.find(1)
        known = pair.drafter._map.draft
        text = vocabulary("target").spell(mirror.tokens)
        if mirror.tree.size or draft.tokens != [*known.opening, *known.encode(text)]:
            continue
        pair.grow_until_idle()
        anew = TranslatingDrafter(pair.drafter.model, pair.drafter._map)
        anew.open(0, DraftSpec(mirror.tokens, spec_of(1).sampling, CREDIT, LARGEST))
        guess = None
        while guess is None:
            guess = anew.grow().proposals.get(0)
        anew.close(0)
        assert next(iter(mirror.tree.root.children)) == guess.token_ids[0]
        compared += 1
    assert compared > 3
    pair.close(1)


@pytest.mark.parametrize("opened", [20, None], ids=["grows too long", "is too long"])
def test_a_text_too_long_for_the_draft_model_is_drafted_for_by_its_end(opened: int | None) -> None:
    model = model_of("draft", 2000, context=64)
    drafter = TranslatingDrafter(model, token_map("target", "draft"))
    tokens = vocabulary("target").encode(TEXT[1].encode())[:80]
    size = len(vocabulary("target"))
    reader = DrafterReader(drafter, tokens[:opened], max_tree_nodes=4, max_length=5000, vocab_size=size)
    reader.grow()
    if opened is not None:
        reader.commit(tokens[opened:])
    drafted = turned = 0
    for token in tokens:
        draft = drafter._drafts[reader.key]
        kept = len(draft.tokens)
        assert 0 < len(draft.slots) == kept <= draft._window.most < 64
        drafted += reader.tree.size > 0
        path = reader.likeliest()[:2]
        reader.commit([*path, token])
        turned += len(draft.tokens) < kept
    assert drafted > len(tokens) // 2 and turned > 1
    drafter.close(reader.key)
    assert model.pool.used == 0


def test_verdicts_that_do_not_follow_are_refused() -> None:
    drafter = TranslatingDrafter(model_of("draft", 2000), token_map("target", "draft"))
    with pytest.raises(KeyError):
        drafter.commit(0, 2, [1])
    drafter.open(0, DraftSpec([5, 6], SamplingParams(temperature=0.0), CREDIT, LARGEST))
    with pytest.raises(OutOfSyncError):
        drafter.commit(0, 4, [7])
    with pytest.raises(OutOfSyncError):
        drafter.commit(0, 2, [])
    drafter.close(0)
    with pytest.raises(DrafterFullError):
        drafter.open(0, DraftSpec([5, 6], SamplingParams(temperature=0.0), 1000, LARGEST))


def test_less_credit_makes_smaller_trees() -> None:
    pair = Pair("draft", 2000)
    pair.open(0)
    pair.drafter.limit(0, 3)
    pair.grow_until_idle()
    assert 0 < pair.mirrors[0].tree.size <= 3
    pair.drafter.limit(0, None)
    pair.grow_until_idle()
    assert pair.mirrors[0].tree.size > 3
    pair.check()
    pair.close(0)
    with pytest.raises(KeyError):
        pair.drafter.limit(0, 3)


def test_of_a_very_long_text_only_its_end_is_spelled() -> None:
    """Spelling all of it would delay the other sequences of the drafter."""
    model = model_of("draft", 2000, context=128)
    spelled = 0

    class Counting(TokenMap):
        def text(self, token: int) -> bytes:
            nonlocal spelled
            spelled += 1
            return super().text(token)

    drafter = TranslatingDrafter(model, token_map("target", "draft"))
    drafter._map.__class__ = Counting
    tokens = vocabulary("target").encode(TEXT[1].encode()) * 100
    try:
        reader = DrafterReader(drafter, tokens, max_length=len(tokens) + 100, vocab_size=len(vocabulary("target")))
        reader.grow()
    finally:
        drafter._map.__class__ = TokenMap
    draft = drafter._drafts[reader.key]
    assert spelled < 4 * 128 < len(tokens) // 4
    assert len(draft.slots) == draft._window.most // 2
    assert (
        draft.tokens[1:]
        == drafter._map.draft.encode(b"".join(map(drafter._map.text, tokens)))[-len(draft.tokens) + 1 :]
    )
    drafter.close(reader.key)
    assert model.pool.used == 0
