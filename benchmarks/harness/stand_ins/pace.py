"""Steps of a given time that use hardly any processor time, as if a model had a device of its own."""

from __future__ import annotations

import time

import torch

from draftwire_core.engine.model.packed_batch import PackedBatch
from draftwire_core.engine.model.packed_model import PackedModel


def pace(step_ms: float, row_ms: float) -> None:
    """Makes each forward pass of this process take at least `step_ms` plus `row_ms` per row; meant for small models,
    which take less by themselves."""
    forward = PackedModel.forward

    def paced(self: PackedModel, batch: PackedBatch) -> torch.Tensor:
        ends = time.perf_counter() + (step_ms + row_ms * len(batch)) / 1000
        logits = forward(self, batch)
        time.sleep(max(0.0, ends - time.perf_counter()))
        return logits

    PackedModel.forward = paced  # type: ignore[method-assign]
