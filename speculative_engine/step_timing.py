"""Measures c(n) of a loaded model."""

from __future__ import annotations

import time

import torch

from speculative_engine.packed_batch import BatchBuilder
from speculative_engine.packed_model import PackedModel
from speculative_engine.step_cost import StepCost

_ROWS = (1, 2, 4, 8, 16, 32, 64)
_REPEATS = 3
_CONTEXT = 128


def measure_step_cost(model: PackedModel) -> StepCost:
    """Time forward passes of 1 to 64 rows after a context of 128 tokens (less if the KV cache is smaller).

    The best of a few runs counts: what is slower is the machine, not the model. Leaves the slots as they were.
    """
    context = max(0, min(_CONTEXT, model.pool.capacity // 2, model.context_length - _ROWS[-1]))
    rows = [count for count in _ROWS if count <= min(model.pool.capacity, model.context_length) - context]
    held = model.pool.take(context)
    seconds = []
    try:
        for count in rows:
            slots = model.pool.take(count)
            builder = BatchBuilder()
            row_ids = [
                builder.add_row(index % model.vocab_size, context + index, int(slots[index]), wants_logits=True)
                for index in range(count)
            ]
            builder.add_lane(held, row_ids)
            batch = builder.build(model.group_size, model.device)
            seconds.append(min(_timed(model, batch) for _ in range(_REPEATS)))
            model.pool.give_back(slots)
    finally:
        model.pool.give_back(held)
    return StepCost(rows, seconds)


def _timed(model: PackedModel, batch) -> float:  # type: ignore[no-untyped-def]
    started = time.perf_counter()
    model.forward(batch)
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    return time.perf_counter() - started
