"""Attention of packed batches by slots, by the kernels and in float64."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from draftwire_core.engine.kernels.kv_rows import elements
from draftwire_core.engine.model.cuda.kernels.attention import attend_slots
from draftwire_core.engine.model.cuda.slots.slot_batch import BatchRoom, SlotBatch
from draftwire_core.engine.model.cuda.slots.slot_layout import SlotLayout
from draftwire_core.engine.model.packed_batch import BatchBuilder, PackedBatch

CPU = torch.device("cpu")


def chain(builder: BatchBuilder, path: np.ndarray, rows: int) -> list[int]:
    """Adds a sequence whose last `rows` slots are those of new rows; returns these rows."""
    context = path[: len(path) - rows]
    added = [builder.add_row(0, len(context) + index, int(path[len(context) + index]), True) for index in range(rows)]
    builder.add_lane(context, added)
    return added


def by_kernels(
    batch: PackedBatch,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    room: BatchRoom | None = None,
) -> Tensor:
    """Returns the attention of each row, [rows, heads, value dim]. room: of the tensors, by default what is needed."""
    layout = SlotLayout.of(batch)
    placed = SlotBatch(room or BatchRoom.of_layout(len(batch), layout), CPU)
    placed.fill(batch, layout)
    padded = torch.zeros(len(placed), *query.shape[1:], dtype=query.dtype)
    padded[: len(batch)] = query
    out = torch.full((*padded.shape[:2], elements(values)), 7.0, dtype=query.dtype)
    for work in placed.work:
        attend_slots(work, padded, keys, values, out, scaling, window, softcap, sinks)
    assert not out[len(batch) :].any()
    return out[: len(batch)]


def in_float64(
    batch: PackedBatch,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Returns the same, row by row."""
    out = torch.zeros(*query.shape[:2], values.shape[2], dtype=torch.float64)
    group = query.shape[1] // keys.shape[1]
    slots = batch.numbers[2]
    for lane in batch.lanes:
        path = torch.from_numpy(np.concatenate([lane.context, slots[lane.rows]]))
        for index in range(lane.first_query, len(lane.rows)):
            row, last = lane.rows[index], len(lane.context) + index + 1
            seen = path[max(0, last - window) if window is not None else 0 : last]
            own_keys, own_values = (each[seen].double().repeat_interleave(group, 1) for each in (keys, values))
            scores = torch.einsum("hd,nhd->hn", query[row].double(), own_keys) * scaling
            if softcap is not None:
                scores = (scores / softcap).tanh() * softcap
            if sinks is not None:
                scores = torch.cat([scores, sinks.double().unsqueeze(1)], dim=1)
            out[row] = torch.einsum("hn,nhd->hd", scores.softmax(-1)[:, : len(seen)], own_values)
    return out
