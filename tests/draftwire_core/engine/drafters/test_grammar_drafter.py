"""Jump-ahead drafts the tokens that a form forces, within its credit and the request's length."""

from collections.abc import Sequence

from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.grammar import GrammarDrafter
from draftwire_core.engine.logits.logit_editor import TreeRows
from draftwire_core.engine.sampling.sampling_params import SamplingParams


class Script:
    """A form whose tokens are all forced and known."""

    ended = False

    def __init__(self, tokens: Sequence[int]) -> None:
        self.left = list(tokens)

    def forced(self) -> list[int]:
        return list(self.left)

    def commit(self, tokens: Sequence[int]) -> None:
        del self.left[: len(tokens)]

    def ends_after(self, tokens: Sequence[int]) -> int | None:
        raise NotImplementedError

    def allows(self, tokens: Sequence[int]) -> bool:
        raise NotImplementedError

    def prepare(self, rows: TreeRows) -> None:
        raise NotImplementedError

    def edit(self, logits: object, rows: TreeRows) -> None:
        raise NotImplementedError


def opened(form: Script, *, credit: int = 8, max_length: int = 100) -> GrammarDrafter:
    drafter = GrammarDrafter(form)
    drafter.open(1, DraftSpec([3, 4], SamplingParams(), credit, max_length, 100))
    return drafter


def test_a_chain_of_certain_nodes() -> None:
    proposal = opened(Script([7, 8, 9])).grow().proposals[1]
    assert (proposal.committed_length, proposal.first_node_id) == (2, 1)
    assert (list(proposal.token_ids), list(proposal.parent_ids)) == ([7, 8, 9], [0, 1, 2])
    assert list(proposal.log_probs) == [0.0, 0.0, 0.0]


def test_it_goes_on_after_what_was_committed() -> None:
    form = Script([7, 8, 9, 10])
    drafter = opened(form, credit=2)
    assert list(drafter.grow().proposals[1].token_ids) == [7, 8]
    assert not drafter.busy
    form.commit([7])
    drafter.commit(1, 3, [7])
    assert drafter.busy
    proposal = drafter.grow().proposals[1]
    assert (proposal.committed_length, proposal.first_node_id) == (3, 3)
    assert (list(proposal.token_ids), list(proposal.parent_ids)) == ([9], [2])


def test_no_node_where_none_is_of_use() -> None:
    assert len(opened(Script([7] * 5), max_length=5).grow().proposals[1].token_ids) == 2
    assert not opened(Script([])).grow().proposals


def test_a_token_that_the_target_lacks_ends_the_chain() -> None:
    """Some tokenizers have added tokens that their models lack, and no drafter may propose these."""
    assert list(opened(Script([7, 99, 100, 8])).grow().proposals[1].token_ids) == [7, 99]


def test_another_way_than_the_forced_one_starts_anew() -> None:
    form = Script([7, 8, 9])
    drafter = opened(form)
    drafter.grow()
    form.left = [20]
    drafter.commit(1, 4, [7, 5])
    proposal = drafter.grow().proposals[1]
    assert (proposal.committed_length, list(proposal.token_ids), list(proposal.parent_ids)) == (4, [20], [0])


def test_a_closed_one_has_nothing_to_do() -> None:
    drafter = opened(Script([7]))
    drafter.close(1)
    drafter.close(1)
    assert not drafter.busy
    assert not drafter.grow().proposals
