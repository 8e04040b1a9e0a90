"""Reading proposals: trees that match whatever crosses on the wire, and faults that leave the tree unchanged."""

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_core.engine.tree.proposal import MergeCount, Proposal, ProposalError, ProposalFault, ProposalReader
from draftwire_core.engine.tree.token_tree import DraftDistribution, Node, TokenTree
from tests.harness.engine.counted_work import instructions

VOCABULARY = 3  # few tokens, so that drafts are often right


def shape_of(node: Node) -> dict[int, dict]:
    return {token: shape_of(child) for token, child in node.children.items()}


class Drafter:
    """The drafter's side: its own tree, and ids for its nodes."""

    def __init__(self, length: int, token: int):
        self.tree = TokenTree(length, token)
        self.next_id = 1
        self._ids: dict[int, tuple[Node, int]] = {}  # by id(node); the stored node keeps the id valid

    def grow(self, rng: random.Random, most: int) -> Proposal | None:
        """Drafts a few new nodes anywhere in the tree."""
        tokens: list[int] = []
        parents: list[int] = []
        first = self.next_id
        for _ in range(rng.randint(1, 4)):
            parent = rng.choice([self.tree.root, *self.tree.nodes()])
            if self.tree.size >= most:
                break
            token = rng.randrange(VOCABULARY)
            node, new = self.tree.add(parent, token)
            if new:
                tokens.append(token)
                parents.append(0 if parent is self.tree.root else self._ids[id(parent)][1])
                self._ids[id(node)] = node, self.next_id
                self.next_id += 1
        return Proposal(self.tree.committed_length, first, tokens, parents) if tokens else None


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_both_sides_hold_the_same_tree_once_the_wire_is_empty(seed: int) -> None:
    """Proposals and verdicts travel in order with any delay; the verifier has enough drafters for any tree."""
    rng = random.Random(seed)
    text = [0]
    verifier = TokenTree(1, 0)
    reader = ProposalReader("d", 1000, VOCABULARY)
    drafter = Drafter(1, 0)
    proposals: deque[Proposal] = deque()
    verdicts: deque[list[int]] = deque()

    def read() -> None:
        proposal = proposals.popleft()
        before = verifier.size
        count = reader.merge(proposal, verifier, text)
        assert verifier.size == before + count.added
        assert count.added + count.stale <= len(proposal.token_ids)
        if proposal.committed_length == len(text):
            assert count.stale == 0

    for _ in range(rng.randint(5, 60)):
        action = rng.random()
        if action < 0.4:
            proposal = drafter.grow(rng, 40)
            if proposal is not None:
                proposals.append(proposal)
        elif action < 0.6 and proposals:
            read()
        elif action < 0.8:
            tokens = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 3))]
            verifier.commit(tokens)
            text.extend(tokens)
            verdicts.append(tokens)
        elif verdicts:
            drafter.tree.commit(verdicts.popleft())
    while proposals:
        read()
    while verdicts:
        drafter.tree.commit(verdicts.popleft())
    assert shape_of(verifier.root) == shape_of(drafter.tree.root)
    assert verifier.root.token == drafter.tree.root.token
    assert verifier.committed_length == drafter.tree.committed_length == len(text)
    assert verifier.size == drafter.tree.size


def start(credit: int = 8) -> tuple[TokenTree, list[int], ProposalReader]:
    return TokenTree(3, 12), [10, 11, 12], ProposalReader("d", credit, 100)


def test_stale_nodes_are_counted_and_their_descendants_with_them() -> None:
    tree, text, reader = start()
    assert reader.merge(Proposal(3, 1, [20, 21, 30], [0, 1, 0], [-0.1, -0.2, -3.0]), tree, text) == MergeCount(3, 0)
    tree.commit([20, 22])
    text += [20, 22]
    # 23 follows 21, which was pruned; 22 and 24 lead along the committed tokens into the tree; 31 follows 30.
    late = Proposal(3, 4, [23, 22, 24, 31], [2, 1, 5, 3])
    assert reader.merge(late, tree, text) == MergeCount(1, 2, foreseen=True)
    assert shape_of(tree.root) == {24: {}}
    node = tree.root.children[24]
    assert (node.source, node.position) == ("d", 5)


def test_a_proposal_of_which_nothing_is_left() -> None:
    tree, text, reader = start()
    tree.commit([50])
    text.append(50)
    assert reader.merge(Proposal(3, 1, [20, 21], [0, 1]), tree, text) == MergeCount(0, 2)
    assert reader.merge(Proposal(4, 3, [60], [0]), tree, text) == MergeCount(1, 0)


def test_what_another_drafter_drafted_already_is_not_added_again() -> None:
    tree, text, reader = start()
    other = ProposalReader("other", 8, 100)
    other.merge(Proposal(3, 1, [20], [0]), tree, text)
    assert reader.merge(Proposal(3, 1, [20, 21], [0, 1]), tree, text) == MergeCount(1, 0)
    assert [node.source for node in tree.root.children[20].path_from(tree.root)] == ["other"]
    assert shape_of(tree.root) == {20: {21: {}}}


MALFORMED = {
    "empty": (Proposal(3, 3, [], []), "token_ids"),
    "too few parents": (Proposal(3, 3, [1, 2], [0]), "parent_ids"),
    "too many parents": (Proposal(3, 3, [1], [0, 0]), "parent_ids"),
    "too few log_probs": (Proposal(3, 3, [1, 2], [0, 0], [-1.0]), "log_probs"),
    "id used before": (Proposal(3, 2, [1], [0]), "first_node_id"),
    "id left out": (Proposal(3, 4, [1], [0]), "first_node_id"),
    "ahead of the verifier": (Proposal(4, 3, [1], [0]), "committed_length"),
    "behind itself": (Proposal(2, 3, [1], [0]), "committed_length"),
    "negative token": (Proposal(3, 3, [5, -1], [0, 0]), "token_ids[1]"),
    "token beyond the vocabulary": (Proposal(3, 3, [100], [0]), "token_ids[0]"),
    "its own parent": (Proposal(3, 3, [1], [3]), "parent_ids[0]"),
    "a parent yet to come": (Proposal(3, 3, [1, 2], [4, 0]), "parent_ids[0]"),
    "negative parent": (Proposal(3, 3, [1], [-1]), "parent_ids[0]"),
    "positive log_prob": (Proposal(3, 3, [1], [0], [0.1]), "log_probs[0]"),
    "log_prob no number": (Proposal(3, 3, [1, 2], [0, 0], [0.0, float("nan")]), "log_probs[1]"),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_proposals_name_the_field_and_change_nothing(kind: str) -> None:
    tree, text, reader = start()
    reader.merge(Proposal(3, 1, [20, 21], [0, 1]), tree, text)
    proposal, field = MALFORMED[kind]
    with pytest.raises(ProposalError) as caught:
        reader.merge(proposal, tree, text)
    assert caught.value.fault is ProposalFault.MALFORMED
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    assert shape_of(tree.root) == {20: {21: {}}} and tree.size == 2
    # The reader still works.
    assert reader.merge(Proposal(3, 3, [22], [2]), tree, text) == MergeCount(1, 0)


def test_a_proposal_that_builds_on_nothing_is_malformed() -> None:
    tree, text, reader = start()
    with pytest.raises(ProposalError) as caught:
        reader.merge(Proposal(0, 1, [20], [0]), tree, text)
    assert caught.value.field == "committed_length" and tree.size == 0


def test_log_probs_of_impossible_tokens_are_fine() -> None:
    tree, text, reader = start()
    reader.merge(Proposal(3, 1, [20], [0], [float("-inf")]), tree, text)


def test_credit_is_for_live_nodes() -> None:
    tree, text, reader = start(credit=3)
    reader.merge(Proposal(3, 1, [20, 21, 30], [0, 1, 0]), tree, text)
    with pytest.raises(ProposalError) as caught:
        reader.merge(Proposal(3, 4, [22], [2]), tree, text)
    assert caught.value.fault is ProposalFault.CREDIT_EXCEEDED and caught.value.field == "token_ids"
    assert tree.size == 3
    tree.commit([20])  # 20 is committed, 30 pruned: one live node is left
    text.append(20)
    assert reader.merge(Proposal(3, 4, [22, 23], [2, 4]), tree, text) == MergeCount(2, 0)
    with pytest.raises(ProposalError, match="would make 4 live nodes, but the credit is 3"):
        reader.merge(Proposal(4, 6, [24], [5]), tree, text)


def test_an_oversized_first_proposal_is_refused() -> None:
    tree, text, reader = start(credit=2)
    with pytest.raises(ProposalError, match="would make 3 live nodes"):
        reader.merge(Proposal(3, 1, [1, 2, 3], [0, 0, 0]), tree, text)
    assert tree.size == 0


class Echo:
    """A drafter that proposes committed tokens, one node per proposal, as often as it may after each verdict."""

    CREDIT = 64

    def __init__(self, behind: int) -> None:
        """behind: number of committed tokens that it pretends not to know; 0: all but the first ones."""
        self.tree, self.text, self.reader = start(self.CREDIT)
        self._behind = behind
        self._next_id = 1

    def verdict(self) -> None:
        self.tree.commit([len(self.text) % 100])
        self.text.append(len(self.text) % 100)

    def answer(self, proposals: int) -> None:
        length = len(self.text) - self._behind if self._behind else 3
        for _ in range(proposals):
            self.reader.merge(Proposal(length, self._next_id, [self.text[length]], [0]), self.tree, self.text)
            self._next_id += 1


def test_committed_tokens_count_against_the_credit() -> None:
    echo = Echo(behind=0)
    echo.verdict()
    echo.answer(Echo.CREDIT)
    with pytest.raises(ProposalError, match="would make 65 nodes of committed tokens, but the credit is 64") as caught:
        echo.answer(1)
    assert caught.value.fault is ProposalFault.CREDIT_EXCEEDED
    assert len(echo.reader._known) == Echo.CREDIT


def test_what_is_committed_is_no_credit_gone_once_the_drafter_knows_it() -> None:
    tree, text, reader = start(credit=3)
    for token in range(20, 60):
        length = len(text)
        assert reader.merge(Proposal(length, 2 * token - 39, [token, 99], [0, 2 * token - 39]), tree, text)
        tree.commit([token])
        text.append(token)


@pytest.mark.parametrize("behind", [1, 2])
def test_reading_takes_no_longer_the_longer_it_goes_on(behind: int) -> None:
    echo, work = Echo(behind), []
    for _ in range(200):
        echo.verdict()
        work.append(instructions(lambda: echo.answer(20)))
        assert len(echo.reader._known) <= 2 * Echo.CREDIT
    assert work[-1] <= 1.1 * work[20]


def test_a_proposal_is_read_without_a_look_at_all_the_others() -> None:
    """Live nodes are counted without a traversal, however many messages they come in."""
    work = {}
    for credit in (64, 1024):
        tree, text, reader = start(credit)
        reader.merge(Proposal(3, 1, [20] * (credit - 2), list(range(credit - 2))), tree, text)
        work[credit] = instructions(
            lambda r=reader, t=tree, x=text, c=credit: r.merge(Proposal(3, c - 1, [30], [0]), t, x)
        )
    assert work[1024] <= 1.1 * work[64]


def test_draws_below_many_nodes_take_time_by_their_number() -> None:
    work = {}
    for count in (50, 500):
        tree, text, reader = TokenTree(3, 12), [10, 11, 12], ProposalReader("d", 1024, 100, draws=True)
        certain = DraftDistribution([20], [1.0])
        chain = Proposal(3, 1, [20] * count, list(range(count)), (), [(parent, certain) for parent in range(count)])
        work[count] = instructions(lambda r=reader, t=tree, x=text, c=chain: r.merge(c, t, x))
    assert work[500] <= 11 * work[50]
