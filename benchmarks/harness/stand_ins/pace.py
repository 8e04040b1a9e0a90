"""Steps of a given time that take hardly any of the processor, as if a model had a device of its own."""

from __future__ import annotations

import time

import torch

from speculative_engine.model.packed_batch import PackedBatch
from speculative_engine.model.packed_model import PackedModel


def pace(step_ms: float, row_ms: float) -> None:
    """From now on each forward pass of this process takes so long, and so much more for each row, or what it takes
    where that is longer: small models are to be paced."""
    forward = PackedModel.forward

    def paced(self: PackedModel, batch: PackedBatch) -> torch.Tensor:
        ends = time.perf_counter() + (step_ms + row_ms * len(batch)) / 1000
        logits = forward(self, batch)
        time.sleep(max(0.0, ends - time.perf_counter()))
        return logits

    PackedModel.forward = paced  # type: ignore[method-assign]
