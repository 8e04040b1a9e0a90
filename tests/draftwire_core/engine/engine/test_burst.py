"""A burst of requests, timed by the step costs: drafts do not delay first tokens."""

from dataclasses import dataclass
from statistics import median

import pytest

from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from tests.harness.engine.engines import ScriptedDrafter, packed, random_tokens, specs_of
from tests.harness.engine.special_models import quick_model
from tests.harness.stand_ins.fixed_cost import FixedCost

SPECS = specs_of([random_tokens(48, seed=seed) for seed in range(16)], 24)
COST = FixedCost([1, 4, 16, 128], [0.028, 0.038, 0.08, 0.47])
"""Step costs of a large target on few CPU cores: each row is expensive."""


@dataclass
class Burst:
    """The results of requests that arrived at once."""

    tokens: dict[int, list[int]]
    first_tokens: dict[int, float]
    """Seconds by request, from the step costs."""
    seconds: float = 0.0


def run(engine: VerificationEngine, specs: list[SequenceSpec], drafter: ScriptedDrafter | None) -> Burst:
    burst = Burst({spec.sequence_id: [] for spec in specs}, {})
    for spec in specs:
        engine.add(spec)
        if drafter is not None:
            drafter.open(spec.sequence_id)
            engine.attach(spec.sequence_id, "scripted")
    while engine.busy:
        for spec in specs if drafter is not None else ():
            sequence = engine._queue.find(spec.sequence_id)
            if sequence is not None and not sequence.tree.size:
                proposal = drafter.propose(spec, len(sequence.tokens))
                if proposal is not None:
                    engine.propose(spec.sequence_id, "scripted", proposal)
        step = engine.step()
        burst.seconds += engine.planner.cost.seconds(step.rows)
        for outcome in step.outcomes:
            burst.tokens[outcome.sequence_id] += outcome.tokens
            burst.first_tokens.setdefault(outcome.sequence_id, burst.seconds)
    return burst


@pytest.fixture(scope="module")
def engine() -> VerificationEngine:
    limits = EngineLimits(max_sequences=16, max_step_rows=128, prefix_cache=False)
    return VerificationEngine(packed(quick_model(), 4000), COST, limits)


@pytest.fixture(scope="module")
def plain(engine: VerificationEngine) -> Burst:
    return run(engine, SPECS, None)


@pytest.mark.parametrize("accuracy", [0.6, 0.9])
def test_drafts_hold_up_neither_first_tokens_nor_all(engine: VerificationEngine, plain: Burst, accuracy: float) -> None:
    drafter = ScriptedDrafter(plain.tokens, accuracy=accuracy, siblings=False)
    alone = run(engine, SPECS[:1], drafter)  # afterwards the drafter's worth is known
    burst = run(engine, SPECS, drafter)
    assert burst.tokens == plain.tokens and alone.tokens[0] == plain.tokens[0]
    assert alone.seconds < 0.9 * run(engine, SPECS[:1], None).seconds  # drafting pays
    assert median(burst.first_tokens.values()) <= 1.01 * median(plain.first_tokens.values())
    assert max(burst.first_tokens.values()) <= 1.05 * max(plain.first_tokens.values())
    assert burst.seconds <= 1.02 * plain.seconds
