"""Right predictions are used whatever earlier requests brought, and wrong ones cost little."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from draftwire_core.engine.drafters.lookup.ngram import NgramOptions, ngram_drafter
from draftwire_core.engine.drafters.lookup.prediction import prediction_drafter
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.planning.acceptance_model import AcceptanceModel
from tests.harness.engine.engines import GREEDY, packed, random_tokens
from tests.harness.engine.special_models import quick_model
from tests.harness.stand_ins.fixed_cost import FixedCost

PROMPT, OTHER = random_tokens(20, 1), random_tokens(20, 2)
CHEAP_ROWS = ([1, 64], [20.0, 60.0])
DEAR_ROWS = ([1, 64], [20.0, 400.0])
"""Step costs, so large that a drafter's own time is negligible."""


@dataclass
class Output:
    tokens: list[int]
    steps: int
    drafted: int
    """Number of the prediction's nodes that were verified."""


class Requests:
    """Runs requests one after another, each with a prediction, beside `local:ngram` or alone."""

    def __init__(self, costs: tuple[list[int], list[float]], *, ngram: bool):
        limits = EngineLimits(max_sequences=8, prefix_cache=True)
        self._engine = VerificationEngine(packed(quick_model()), FixedCost(*costs), limits)
        self._predictions = AcceptanceModel()
        self._number = 0
        self._ngram = ngram
        if ngram:
            self._engine.add_drafter("ngram", ngram_drafter(NgramOptions()))

    def run(self, prompt: list[int], prediction: list[int], count: int) -> Output:
        self._number += 1
        engine, source = self._engine, f"prediction-{self._number}"
        engine.add(SequenceSpec(self._number, prompt, len(prompt) + count, GREEDY))
        if self._ngram:
            engine.attach(self._number, "ngram")
        if prediction:
            engine.add_drafter(source, prediction_drafter(prediction, len(prompt), self._predictions))
            engine.attach(self._number, source, kind="prediction")
        output = Output([], 0, 0)
        finish = None
        while finish is None:
            output.steps += 1
            for outcome in engine.step().outcomes:
                output.tokens += outcome.tokens
                output.drafted += outcome.drafted.get(source, 0)
                finish = outcome.finish
        engine.forget(source)
        return output


Costs = tuple[list[int], list[float]]


@pytest.mark.parametrize(
    ("wrong", "costs", "ngram"), [(0, CHEAP_ROWS, False), (4, DEAR_ROWS, False), (4, CHEAP_ROWS, True)]
)
def test_a_right_prediction_is_used_after_wrong_ones(wrong: int, costs: Costs, ngram: bool) -> None:
    check_right(wrong, costs, ngram)


def test_wrong_predictions_cost_less_and_less() -> None:
    check_wrong(DEAR_ROWS)


@pytest.mark.slow
class TestAnyNumber:
    @pytest.mark.parametrize("ngram", [True, False], ids=["beside local:ngram", "alone"])
    @pytest.mark.parametrize("costs", [CHEAP_ROWS, DEAR_ROWS], ids=["cheap rows", "dear rows"])
    @pytest.mark.parametrize("wrong", [0, 2, 4, 12])
    def test_a_right_prediction_is_used_after_wrong_ones(self, wrong: int, costs: Costs, ngram: bool) -> None:
        check_right(wrong, costs, ngram)

    @pytest.mark.parametrize("costs", [CHEAP_ROWS, DEAR_ROWS], ids=["cheap rows", "dear rows"])
    def test_wrong_predictions_cost_less_and_less(self, costs: Costs) -> None:
        check_wrong(costs, 12)


def check_right(wrong: int, costs: Costs, ngram: bool) -> None:
    requests = Requests(costs, ngram=ngram)
    plain = requests.run(PROMPT, [], 64).tokens
    for seed in range(wrong):
        requests.run(OTHER, random_tokens(64, 50 + seed), 32)
    for _ in range(3):
        right = requests.run(PROMPT, plain, 64)
        assert right.tokens == plain
        assert right.steps <= 12, "one a token without it"


def check_wrong(costs: Costs, count: int = 7) -> None:
    requests = Requests(costs, ngram=False)
    outputs = [requests.run(OTHER, random_tokens(64, 50 + seed), 32) for seed in range(count)]
    a_step = costs[1][0]
    a_row = (costs[1][1] - a_step) / 63
    for output in outputs[4:]:
        assert output.drafted * a_row <= 0.05 * output.steps * a_step
