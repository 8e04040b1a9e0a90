"""Long and short prompts side by side: none is held up, none starves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_core.engine.engine.next_step import divide
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.engines import GREEDY, engine_of, packed, random_tokens
from tests.harness.engine.special_models import quick_model

LONG = random_tokens(1900, seed=1)


@pytest.fixture(scope="module")
def model() -> PackedModel:
    return packed(quick_model(), 8000)


@pytest.mark.parametrize(
    ("pending", "rows", "expected"),
    [
        ([], 8, []),
        ([100], 8, [8]),
        ([3], 8, [3]),
        ([100, 3], 8, [5, 3]),
        ([100, 50, 3, 2], 8, [4, 0, 2, 2]),
        ([2, 50, 50], 8, [2, 6, 0]),
        ([100, 100], 1, [1, 0]),
        ([100, 2], 0, [0, 0]),
    ],
)
def test_who_gets_how_many_rows(pending: list[int], rows: int, expected: list[int]) -> None:
    assert divide(pending, rows) == expected


@given(st.lists(st.integers(1, 40), max_size=6), st.integers(0, 60))
def test_no_row_is_wasted_and_the_oldest_gets_half(pending: list[int], rows: int) -> None:
    shares = divide(pending, rows)
    assert all(0 <= share <= lacking for share, lacking in zip(shares, pending, strict=True))
    assert sum(shares) == min(rows, sum(pending))
    if pending:
        assert shares[0] >= min(pending[0], (rows + 1) // 2)


def steps_to(engine: VerificationEngine, sequence_id: int) -> int:
    """Returns the number of steps until a sequence has its first token."""
    steps = 0
    while True:
        steps += 1
        if any(outcome.sequence_id == sequence_id for outcome in engine.step().outcomes):
            return steps


@pytest.mark.parametrize("decoding", [0, 2])
def test_a_short_prompt_behind_a_long_one(model: PackedModel, decoding: int) -> None:
    engine = engine_of(model, max_step_rows=32, prefix_cache=False)
    for index in range(decoding):
        engine.add(SequenceSpec(10 + index, [5 + index], 1900, GREEDY))
    engine.step() if decoding else None
    engine.add(SequenceSpec(0, LONG, 1910, GREEDY))
    engine.step()
    engine.add(SequenceSpec(1, random_tokens(20, seed=2), 40, GREEDY))
    assert steps_to(engine, 1) <= 2
    long = engine._queue.running[0]
    assert long.pending > 1500
    for sequence_id in (0, 1, 10, 11):
        engine.remove(sequence_id)
    assert model.pool.used == 0


def test_a_long_prompt_gets_on_however_many_short_ones_come(model: PackedModel) -> None:
    engine = engine_of(model, max_step_rows=32, prefix_cache=False)
    engine.add(SequenceSpec(0, LONG[:400], 410, GREEDY))
    for step in range(400 // 16):
        engine.add(SequenceSpec(1 + step, random_tokens(31, seed=step), 32, GREEDY))
        engine.step()
    assert engine._queue.find(0) is None or engine._queue.running[0].pending == 1
    for sequence_id in range(30):
        engine.remove(sequence_id)
    assert model.pool.used == 0


def test_nobody_waits_for_more_than_he_would_get(model: PackedModel) -> None:
    """The second sequence shares its beginning with a much longer one, but computes it itself."""
    engine = engine_of(model, max_step_rows=64)
    sampling = SamplingParams(temperature=1.0, seed=1)
    engine.add(SequenceSpec(0, LONG, 1910, sampling))
    engine.add(SequenceSpec(1, [*LONG[:60], 5, 6], 80, sampling))
    assert steps_to(engine, 1) <= 2
    engine.remove(0)
    engine.remove(1)
    assert model.pool.used == 0
