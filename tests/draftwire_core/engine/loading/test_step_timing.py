"""Measuring c(n) of a loaded model, for any size of its KV cache, without leaving slots in use."""

import pytest
import torch

from draftwire_core.engine.kernels.library import LIBRARY
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.loading import step_timing
from draftwire_core.engine.loading.step_timing import measure_step_cost
from draftwire_core.engine.model.experts.experts import Experts
from draftwire_core.engine.model.packed_batch import PackedBatch
from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness.engine.engines import tiny_model
from tests.harness.engine.expert_models import expert_model


@pytest.mark.parametrize("slots", [1, 2, 40, 300, 5000])
def test_any_kv_cache(slots: int) -> None:
    model = PackedModel(tiny_model("Llama", num_hidden_layers=1), slots)
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


@pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library")
@pytest.mark.parametrize("seconds", [1e-4, 0.03, 2.0])
def test_another_block_of_rows_is_a_step_of_the_curve(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model = PackedModel(tiny_model("Llama", torch.bfloat16, num_hidden_layers=1), 5000, weights="q4_0")
    monkeypatch.setattr(CompiledProduct, "rows_at_once", lambda *_: 12)
    taken: dict[int, list[float]] = {}

    def pretended(model: PackedModel, batch: PackedBatch) -> float:
        rows = len(batch.token_ids)
        taken.setdefault(rows, []).append(seconds * -(-rows // 12))
        return taken[rows][-1]

    monkeypatch.setattr(step_timing, "_timed", pretended)
    cost = measure_step_cost(model)
    ends = [rows for rows in taken if rows & (rows - 1)]
    assert sum(sum(taken[rows]) for rows in ends) < 1
    if seconds < 0.01:
        assert ends == [12, 13, 24, 25, 36, 37, 48, 49]
        assert cost.seconds(12) == pytest.approx(cost.seconds(1)) and cost.seconds(13) > 1.9 * cost.seconds(12)
    else:
        assert len(ends) < 8


def test_more_rows_need_more_experts() -> None:
    """The time of a step of a mixture of experts is that of reading the experts that its rows need."""
    model = PackedModel(
        expert_model("Qwen3Moe", num_experts=32, num_local_experts=32, num_experts_per_tok=1, num_hidden_layers=1), 600
    )
    needed: dict[int, set[int]] = {}
    experts = next(each for each in model.model.modules() if isinstance(each, Experts))
    experts.register_forward_pre_hook(
        lambda _, inputs: needed.setdefault(len(inputs[0]), set()).update(inputs[1].flatten().tolist())
    )
    measure_step_cost(model)
    counts = [len(needed[1 << power]) for power in range(8)]
    assert counts[0] == 1 and counts == sorted(counts)
    assert counts[3] >= 4 and counts[6] >= 16
