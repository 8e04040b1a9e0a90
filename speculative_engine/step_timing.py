"""Measures c(n) of a loaded model."""

from __future__ import annotations

import time

import numpy as np
import torch

from speculative_engine.packed_batch import BatchBuilder, PackedBatch
from speculative_engine.packed_model import PackedModel
from speculative_engine.step_cost import StepCost

_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 20
_SECONDS = 2.0
"""Time for further rounds, which small models, whose times a busy moment bends most, have enough of."""
_CONTEXT = 128


def measure_step_cost(model: PackedModel) -> StepCost:
    """Time forward passes of 1 to 128 rows after a context of 128 tokens (less if the KV cache is smaller).

    Row counts take turns, and the best of some rounds counts: what is slower is the machine, not the model, and a
    moment in which it is busy must not bend the curve. Leaves the slots as they were.
    """
    context = max(0, min(_CONTEXT, model.pool.capacity // 2, model.context_length - _ROWS[-1]))
    rows = [count for count in _ROWS if count <= min(model.pool.capacity, model.context_length) - context]
    held = model.pool.take(context + rows[-1])
    try:
        batches = [_batch(model, held[:context], held[context : context + count]) for count in rows]
        rounds: list[list[float]] = []
        started = time.perf_counter()
        while len(rounds) < _LEAST_ROUNDS or (len(rounds) < _MOST_ROUNDS and time.perf_counter() - started < _SECONDS):
            rounds.append([_timed(model, batch) for batch in batches])
    finally:
        model.pool.give_back(held)
    return StepCost(rows, [min(times) for times in zip(*rounds, strict=True)])


def _batch(model: PackedModel, context: np.ndarray, slots: np.ndarray) -> PackedBatch:
    builder = BatchBuilder()
    rows = [
        builder.add_row(index % model.vocab_size, len(context) + index, int(slot), wants_logits=True)
        for index, slot in enumerate(slots)
    ]
    builder.add_lane(context, rows)
    return builder.build(model.group_size, model.device)


def _timed(model: PackedModel, batch: PackedBatch) -> float:
    started = time.perf_counter()
    model.forward(batch)
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    return time.perf_counter() - started
