"""Counts of the gain of drafting, of the requests that a verifier has served."""

import pytest

from draftwire.v1.speculation_pb2 import DraftPlanning, SpeculationOptions
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.in_process_verifier import InProcessVerifier, order
from verifier_service.counting.step_counts import GainCounts


async def test_requests_whose_drafting_the_planner_does_not_decide_are_left_out(
    verifier: InProcessVerifier, twin: InProcessDrafter
) -> None:
    await verifier.pool.membership.attach("twin:1", "twin")
    gain = verifier.verifier.step_counts.gain
    for options in (
        SpeculationOptions(enabled=False),
        SpeculationOptions(drafter="twin", planning=DraftPlanning.DRAFT_PLANNING_ALWAYS),
    ):
        assert (await verifier.generate(order(speculation=options))).token_ids
    assert gain == GainCounts()
    assert gain.speed_up == 1
    output = await verifier.generate(order())
    assert gain.tokens == len(output.token_ids)
    assert gain.sequences == output.finished.speculation.steps
    told = verifier.verifier.status().gain
    assert (told.tokens, told.sequences) == (gain.tokens, gain.sequences)
    assert told.time.ToNanoseconds() / 1e9 == pytest.approx(gain.seconds, abs=1e-6)
    assert told.plain_time.ToNanoseconds() / told.time.ToNanoseconds() == pytest.approx(gain.speed_up, rel=1e-3)
