"""Steps in fixed sizes, on a CPU: what a GPU runs, but for the graphs, whose captured calls are made again here."""

import pytest

from speculative_engine.step_buckets import StepBuckets
from tests.speculative_engine.support import (
    ARCHITECTURES,
    check_against_plain,
    packed,
    random_tokens,
    tiny_model,
    walk,
)

BUCKETS = StepBuckets(rows=(1, 2, 4, 8, 16), keys=(64, 256))
"""Small enough for some of the tests' steps to lie beyond."""


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_bucketed_passes_say_what_plain_forwards_say(name: str, captured: bool) -> None:
    model = tiny_model(name)
    bucketed = packed(model, buckets=BUCKETS)
    assert bucketed.steps is not None
    if captured:
        bucketed.steps.capture()
        assert bucketed.steps.captured == 10 and bucketed.steps.unavailable is None
    texts = [random_tokens(count, seed=count) for count in (33, 7, 50, 20)]
    rows = walk(bucketed, texts, [15, 1, 40, 5], seed=1)
    assert len(rows) > sum(map(len, texts)) // 2
    assert check_against_plain(model, rows) < 1e-4
    assert bucketed.pool.used == 0
