"""Measuring c(n) of a loaded model, for any size of its KV cache, without leaving slots in use."""

import pytest
import torch

from speculative_engine.loading import step_timing
from speculative_engine.loading.step_timing import measure_step_cost
from speculative_engine.model.packed_batch import PackedBatch
from speculative_engine.model.packed_model import PackedModel
from tests.harness.engine.engines import tiny_model


@pytest.mark.parametrize("slots", [1, 2, 40, 300, 5000])
def test_any_kv_cache(slots: int) -> None:
    model = PackedModel(tiny_model("Llama"), slots)
    with torch.inference_mode():
        cost = measure_step_cost(model)
    assert model.pool.free == slots
    assert 0 < cost.seconds(1) <= cost.seconds(16) <= cost.seconds(16, 16)


def test_a_slow_model_is_timed_with_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []

    def pretended(model: PackedModel, batch: PackedBatch) -> float:
        timed.append(len(batch.token_ids))
        return 1.5 + 0.5 * len(batch.token_ids)

    monkeypatch.setattr(step_timing, "_timed", pretended)
    cost = measure_step_cost(PackedModel(tiny_model("Llama"), 5000))
    assert timed == [1, 2, 4, 4, 4], "each once"
    assert cost.seconds(64) == pytest.approx(1.5 + 0.5 * 64)
