"""Drafters without a model: their trees match the verifier's, whatever is committed."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_core.engine.drafters.drafter import Drafter, DraftSpec, OutOfSyncError
from draftwire_core.engine.drafters.lookup.ngram import NgramOptions, ngram_drafter
from draftwire_core.engine.drafters.lookup.prediction import prediction_drafter
from draftwire_core.engine.drafters.lookup.suffix import SuffixOptions, suffix_drafter
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.drafter_reader import DrafterReader

DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "ngram": lambda: ngram_drafter(NgramOptions(min=1)),
    "suffix": lambda: suffix_drafter(SuffixOptions(min=1)),
    "shared suffix": lambda: suffix_drafter(SuffixOptions(min=1, shared=True, keep=1000)),
    "prediction": lambda: prediction_drafter([1, 2, 4, 0, 1, 3, 3, 2, 1, 4] * 3, prompt_length=3),
}
TOKENS = st.lists(st.integers(0, 4), min_size=1, max_size=12)
COMMITS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 6), TOKENS), max_size=25
)  # sequence, number of right draft tokens to commit, further tokens

each_drafter = pytest.mark.parametrize("name", DRAFTERS)


@each_drafter
@given(prompts=st.lists(TOKENS, min_size=3, max_size=3), commits=COMMITS)
@settings(max_examples=60, deadline=None)
def test_trees_stay_mirrors(name: str, prompts: list[list[int]], commits: list[tuple[int, int, list[int]]]) -> None:
    """`DrafterReader` checks every proposal."""
    drafter = DRAFTERS[name]()
    readers = [DrafterReader(drafter, prompt, key=key, max_tree_nodes=8) for key, prompt in enumerate(prompts)]
    for which, right, tokens in [(0, 0, [1]), *commits]:
        while drafter.busy:
            proposals = drafter.grow().proposals
            for each in readers:
                each.take(proposals)
        for each in readers:
            mirrored = {node.id: node for node in drafter._drafts[each.key].tree.nodes()}  # type: ignore[attr-defined]
            assert len(mirrored) == each.tree.size
            paths = sorted([n.token for n in node.path_from(each.tree.root)] for node in each.tree.nodes())
            root = drafter._drafts[each.key].tree.root  # type: ignore[attr-defined]
            assert paths == sorted([n.token for n in node.path_from(root)] for node in mirrored.values())
        chosen = readers[which]
        committed = [*chosen.likeliest()[:right], *tokens]
        chosen.tree.commit(committed)
        chosen.tokens += committed
        drafter.commit(chosen.key, len(chosen.tokens), committed)
    for each in readers:
        drafter.close(each.key)
    assert not drafter.busy
    assert not drafter._drafts  # type: ignore[attr-defined]


@each_drafter
class TestWhatEveryDrafterDoes:
    def test_a_verdict_that_does_not_continue_its_tokens(self, name: str) -> None:
        drafts = DrafterReader(DRAFTERS[name](), [1, 2, 3])
        with pytest.raises(OutOfSyncError):
            drafts.drafter.commit(drafts.key, 5, [4])
        with pytest.raises(KeyError):
            drafts.drafter.commit("nobody", 5, [4])

    def test_opened_again_it_starts_anew(self, name: str) -> None:
        drafter = DRAFTERS[name]()
        DrafterReader(drafter, [1, 2, 3, 1, 2]).grow()
        again = DrafterReader(drafter, [1, 2, 4, 1, 2])
        again.grow()
        assert again.likeliest()

    def test_a_long_prompt_is_read_in_parts_and_holds_nobody_up(self, name: str) -> None:
        drafter = DRAFTERS[name]()
        long = [*range(900)] * 3
        drafter.open("long", DraftSpec(long, SamplingParams(), 8, 10_000))
        opened = drafter.grow().opened
        assert not opened
        short = DrafterReader(drafter, [1, 2, 3, 1, 2])
        growth = drafter.grow()
        assert growth.opened == [short.key]
        assert growth.proposals
        steps = 2
        while not opened:
            opened = drafter.grow().opened
            steps += 1
        assert opened == ["long"]
        assert 5 <= steps < 10
        assert not drafter.busy

    def test_closed_ones_are_let_alone(self, name: str) -> None:
        drafts = DrafterReader(DRAFTERS[name](), [1, 2, 3, 1, 2])
        drafts.drafter.close(drafts.key)
        drafts.drafter.close(drafts.key)
        assert not drafts.drafter.busy
