"""Measuring c(n) of a loaded model, for any size of its KV cache, without leaving slots in use."""

import pytest
import torch

from speculative_engine.loading.step_timing import measure_step_cost
from speculative_engine.model.packed_model import PackedModel
from tests.harness.engine.engines import tiny_model


@pytest.mark.parametrize("slots", [1, 2, 40, 300, 5000])
def test_any_kv_cache(slots: int) -> None:
    model = PackedModel(tiny_model("Llama"), slots)
    with torch.inference_mode():
        cost = measure_step_cost(model)
    assert model.pool.free == slots
    assert 0 < cost.seconds(1) <= cost.seconds(16) <= cost.seconds(16, 16)
