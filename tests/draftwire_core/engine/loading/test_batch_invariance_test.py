"""Rows next to others at the sizes of serving."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from draftwire_core.engine.loading import batch_invariance_test, self_test
from draftwire_core.engine.loading.batch_invariance_test import is_batch_invariant
from draftwire_core.engine.loading.self_test import SelfTestReport, check_reproducible, run_self_test
from draftwire_core.engine.model.packed_batch import PackedBatch
from draftwire_core.engine.model.packed_model import PackedModel, UnsupportedModelError
from tests.harness.engine.engines import packed, tiny_model
from tests.harness.engine.pretended_gpu import pretended_gpu, to_gpu

Spoil = Callable[[PackedBatch], bool]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes for a CPU."""
    monkeypatch.setattr(batch_invariance_test, "CONTEXTS", (20, 150, 400))
    monkeypatch.setattr(batch_invariance_test, "ROWS", (2, 9, 40))
    monkeypatch.setattr(batch_invariance_test, "OTHERS", (1, 20))


def spoil(model: PackedModel, which: Spoil, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moves the logits of some passes by the smallest amount."""
    forward = model.forward

    def run(batch: PackedBatch) -> torch.Tensor:
        logits = forward(batch)
        return torch.nextafter(logits, torch.tensor(torch.inf)) if which(batch) else logits

    monkeypatch.setattr(model, "forward", run)


def test_what_computes_row_by_row_is_the_is_batch_invariant() -> None:
    model = packed(tiny_model("Llama"), slots=500)
    assert is_batch_invariant(model)
    assert model.pool.used == 0


@pytest.mark.parametrize(
    "which",
    [
        lambda batch: len(batch) == 40,
        lambda batch: len(batch.lanes) == 21,
        lambda batch: len(batch) == 1 and len(batch.lanes[0].context) > 400,
    ],
    ids=["a chunk", "a full batch", "a step after the last context"],
)
def test_a_bit_that_differs_is_found(which: Spoil, monkeypatch: pytest.MonkeyPatch) -> None:
    model = packed(tiny_model("Llama"), slots=500)
    spoil(model, which, monkeypatch)
    assert not is_batch_invariant(model)


def test_the_self_test_tries_it_where_shapes_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def find(model: PackedModel) -> bool:
        tried.append(model.pool.free)
        return False

    monkeypatch.setattr(self_test, "is_batch_invariant", find)
    assert run_self_test(packed(tiny_model("Llama"), slots=500)).bit_exact and not tried
    monkeypatch.setattr(torch, "equal", lambda *_: True)  # as if the script found no bit that differs
    with pretended_gpu():
        moved = tiny_model("Llama", num_hidden_layers=1)
        to_gpu(moved)
        model = PackedModel(moved, 500, kernels=False)
        assert not run_self_test(model).bit_exact and tried == [440]
    assert model.pool.capacity == 500 and model.pool.used == 0


def test_a_gpu_whose_rows_are_not_batch_invariant_may_be_refused() -> None:
    with pretended_gpu():
        moved = tiny_model("Llama")
        to_gpu(moved)
        model = PackedModel(moved, 500, kernels=False)
    report = SelfTestReport(bit_exact=False, error=0.0, tolerance=1.0, seconds=1.0, slot_bytes=8)
    with pytest.raises(UnsupportedModelError, match="not batch-invariant on cuda:0, as --reproducible requires"):
        check_reproducible(model, report)
    check_reproducible(model, replace(report, bit_exact=True))
    check_reproducible(packed(tiny_model("Llama")), report)  # on a CPU a target's rows are, and a draft's need not be


def test_little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_invariance_test, "CONTEXTS", (20, 150, 5000))
    assert is_batch_invariant(packed(tiny_model("Llama"), slots=30))
