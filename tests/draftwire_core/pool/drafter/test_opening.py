"""Verdicts as an opening stores and writes them."""

import math
from collections.abc import Iterator

import pytest
import torch

from draftwire.v1.verdict_pb2 import HiddenState, Verdict, VerdictBatch
from draftwire_core.engine.engine.step_result import SequenceOutcome
from draftwire_core.pool.drafter.opening import DrafterOpening


@pytest.fixture
async def opening() -> DrafterOpening:
    return DrafterOpening(epoch=3, request_id="req-1", max_tree_nodes=8)


@pytest.fixture
def outcomes() -> Iterator[SequenceOutcome]:
    """Yields steps of one sequence of 10 tokens, each with a hidden state."""

    def steps() -> Iterator[SequenceOutcome]:
        length = 10
        for tokens in ([5, 6], [7], [8, 9, 11]):
            length += len(tokens)
            sources = ["a#1"] * (len(tokens) - 1) + [None]
            yield SequenceOutcome(4, tokens, sources, length, hidden_state=torch.tensor([float(length), 0.0]))

    return steps()


def written(opening: DrafterOpening, now: float = 0.0) -> Verdict:
    batch = VerdictBatch()
    opening.write(batch, 4, now)
    return batch.verdicts[0]


async def test_a_step_is_a_verdict(opening: DrafterOpening, outcomes: Iterator[SequenceOutcome]) -> None:
    for token_ids, length, accepted in (([5, 6], 12, 1), ([7], 13, 0)):
        opening.hold(next(outcomes), hidden_states=False)
        assert opening.held
        expected = Verdict(sequence_id=4, epoch=3, committed_length=length, token_ids=token_ids, accepted=accepted)
        assert written(opening).SerializeToString() == expected.SerializeToString()
        assert not opening.held


async def test_steps_that_were_held_back_are_one_verdict(
    opening: DrafterOpening, outcomes: Iterator[SequenceOutcome]
) -> None:
    steps = list(outcomes)
    for outcome in steps:
        opening.hold(outcome, hidden_states=True)
    state = HiddenState(dtype="float32", values=torch.tensor([16.0, 0.0]).numpy().tobytes())
    assert written(opening) == Verdict(
        sequence_id=4, epoch=3, committed_length=16, token_ids=[5, 6, 7, 8, 9, 11], accepted=3, hidden_state=state
    )
    assert [outcome.tokens for outcome in steps] == [[5, 6], [7], [8, 9, 11]], "other drafters get them, too"


async def test_a_hidden_state_goes_out_once(opening: DrafterOpening, outcomes: Iterator[SequenceOutcome]) -> None:
    opening.hold(next(outcomes), hidden_states=True)
    assert written(opening).HasField("hidden_state")
    opening.hold(next(outcomes), hidden_states=False)
    assert not written(opening).HasField("hidden_state")


async def test_the_time_of_a_length(opening: DrafterOpening, outcomes: Iterator[SequenceOutcome]) -> None:
    for now, outcome in enumerate(outcomes):
        opening.hold(outcome, hidden_states=False)
        written(opening, float(now))
    assert opening.sent_at(13) == 1.0
    assert opening.sent_at(12) == -math.inf, "a drafter that knows 13 tokens is not asked about 12 any more"
    assert opening.sent_at(16) == 2.0


@pytest.mark.parametrize(("always_draft", "waits"), [(False, True), (True, False)])
async def test_one_that_needs_features_waits_for_the_end_of_a_pause(always_draft: bool, waits: bool) -> None:
    one = DrafterOpening(3, "req-1", 8, always_draft, reads_features=True)
    assert (one.waits(paused=True), one.waits(paused=False)) == (waits, False)
