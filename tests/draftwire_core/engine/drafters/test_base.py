"""The base class of drafters: bounds, numbering and proposals of a tree, and verdicts."""

from collections.abc import Sequence

import pytest

from draftwire_core.engine.drafters.base import TreeDraft, TreeDrafter
from draftwire_core.engine.drafters.drafter import DraftSpec, OutOfSyncError
from draftwire_core.engine.sampling.sampling_params import SamplingParams


class Counting(TreeDrafter[TreeDraft]):
    """Drafts two tokens side by side, and four in a row below the first; records its observations."""

    def __init__(self) -> None:
        super().__init__()
        self.observed: list[tuple[int, list[int]]] = []

    def begin(self, spec: DraftSpec) -> TreeDraft:
        return TreeDraft(spec)

    def observe(self, draft: TreeDraft, tokens: Sequence[int]) -> None:
        self.observed.append((draft.tree.committed_length, list(tokens)))

    def extend(self, drafts: Sequence[TreeDraft]) -> None:
        for draft in drafts:
            node = draft.tree.root
            for step in range(4):
                child = draft.add(node, node.token + 1)
                if child is None:
                    break
                if step == 0:
                    draft.add(node, node.token + 2)
                node = child


def opened(max_tree_nodes: int = 16, max_length: int = 50) -> Counting:
    drafter = Counting()
    drafter.open(1, DraftSpec([5, 10], SamplingParams(), max_tree_nodes, max_length))
    return drafter


def test_nodes_are_proposed_once_and_numbered_on() -> None:
    drafter = opened()
    growth = drafter.grow()
    first = growth.proposals[1]
    assert growth.opened == [1] and not drafter.busy
    assert (first.committed_length, first.first_node_id) == (2, 1)
    assert (first.token_ids, first.parent_ids) == ([11, 12, 12, 13, 14], [0, 0, 1, 3, 4])
    assert first.last
    drafter.commit(1, 4, [11, 12])
    growth = drafter.grow()
    second = growth.proposals[1]
    assert growth.opened == []
    # 13 and 14 are in the tree already and are followed; the sibling and the nodes below it are new.
    assert (second.committed_length, second.first_node_id) == (4, 6)
    assert (second.token_ids, second.parent_ids) == ([14, 15, 16], [0, 5, 7])
    assert drafter.observed == [(2, [11, 12])]


def test_a_tree_keeps_to_the_credit() -> None:
    drafter = opened(max_tree_nodes=3)
    assert drafter.grow().proposals[1].token_ids == [11, 12, 12]
    drafter.limit(1, 1)
    drafter.commit(1, 3, [99])
    assert drafter.grow().proposals[1].token_ids == [100]
    drafter.limit(1, None)
    drafter.commit(1, 4, [7])
    assert len(drafter.grow().proposals[1].token_ids) == 3
    drafter.limit(1, 100)  # capped by the credit of the opening
    drafter.commit(1, 5, [50])
    assert len(drafter.grow().proposals[1].token_ids) == 3


def test_a_tree_keeps_to_the_end_of_the_request() -> None:
    drafter = opened(max_length=5)  # tokens at 2 and 3 are drafted; the row of the one at 3 gives the one at 4
    assert drafter.grow().proposals[1].token_ids == [11, 12, 12]
    drafter.commit(1, 4, [11, 12])
    assert drafter.busy and not drafter.grow().proposals


@pytest.mark.parametrize(("length", "tokens"), [(5, [11, 12]), (3, [11, 12]), (2, [])])
def test_a_verdict_that_does_not_continue_the_sequence(length: int, tokens: list[int]) -> None:
    drafter = opened()
    with pytest.raises(OutOfSyncError, match="the drafter has 2 tokens"):
        drafter.commit(1, length, tokens)
    assert drafter.observed == []


def test_a_sequence_that_is_not_open() -> None:
    drafter = opened()
    drafter.close(1)
    drafter.close(1)
    assert not drafter.busy and not drafter.grow().proposals
    with pytest.raises(KeyError):
        drafter.commit(1, 3, [11])
    with pytest.raises(KeyError):
        drafter.limit(1, 2)
