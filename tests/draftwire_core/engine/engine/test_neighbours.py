"""Requests with drafts slow down their neighbours in a batch only a little."""

from __future__ import annotations

import pytest

from draftwire_core.engine.drafters.lookup.prediction import prediction_drafter
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine, generate_all
from draftwire_core.engine.planning.acceptance_model import AcceptanceModel
from tests.harness.engine.engines import GREEDY, packed, random_tokens
from tests.harness.engine.special_models import quick_model
from tests.harness.stand_ins.fixed_cost import FixedCost

COSTS = ([1, 65], [20.0, 20.0 + 64 * 2.0])
"""Seconds of a step, so large that a drafter's own time is negligible: a row costs a tenth of what a step costs."""
DRAFTED, UNDRAFTED, LENGTH = 4, 2, 96


def speeds(share: float) -> tuple[float, float]:
    """Returns the mean speed of requests whose drafts are right, and the least of their neighbours without, over plain
    decoding, by the cost of the steps."""
    model = packed(quick_model())
    cost = FixedCost(*COSTS)
    specs = [
        SequenceSpec(number, prompt, len(prompt) + LENGTH, GREEDY)
        for number, prompt in enumerate(random_tokens(8, seed) for seed in range(DRAFTED + UNDRAFTED))
    ]
    outputs = generate_all(VerificationEngine(model, cost, EngineLimits()), specs)
    engine = VerificationEngine(model, cost, EngineLimits(plain_share=share))
    alike = AcceptanceModel()
    for spec, output in zip(specs, outputs, strict=True):
        engine.add(spec)
        if spec.sequence_id < DRAFTED:
            engine.add_drafter(f"d{spec.sequence_id}", prediction_drafter(output, len(spec.tokens), alike))
            engine.attach(spec.sequence_id, f"d{spec.sequence_id}", kind="prediction")
    found: dict[int, list[int]] = {spec.sequence_id: [] for spec in specs}
    spent, plain = 0.0, cost.seconds(len(specs), len(specs))
    while all(len(tokens) < LENGTH for tokens in found.values()):
        result = engine.step()
        if any(found.values()):  # the first step computes the prompts
            spent += cost.seconds(result.rows, len(specs)) / plain
        for outcome in result.outcomes:
            found[outcome.sequence_id] += outcome.tokens
    assert all(outputs[number][: len(tokens)] == tokens for number, tokens in found.items())
    counts = [(len(tokens) - 1) / spent for tokens in found.values()]
    return sum(counts[:DRAFTED]) / DRAFTED, min(counts[DRAFTED:])


def test_a_request_without_drafts_keeps_nine_tenths_of_its_speed() -> None:
    drafted, undrafted = speeds(0.9)
    assert undrafted > 0.88 and drafted > 1.1


def test_without_a_share_the_most_tokens_in_total_count() -> None:
    drafted, undrafted = speeds(0.0)
    assert undrafted < 0.6 and drafted > 2


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_other_shares_are_kept(share: float) -> None:
    assert speeds(share)[1] > share - 0.08  # it may end two tokens behind
