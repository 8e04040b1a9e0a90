"""Forward passes with a fixed number of rows: the reproducible mode for GPUs, where products depend on that number.

Libraries choose the order of a product's sums by its shape. If every pass has the same number of rows, in all its
layers and in the output head, each row's sums run in the same order whatever else is in the pass. Attention has fixed
shapes of its own (fixed_attention.py).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from speculative_engine.device_copy import to_device
from speculative_engine.kv.kv_slots import PADDING_SLOT
from speculative_engine.model.cuda.fixed_batch import FixedBatch
from speculative_engine.model.cuda.graph_capture import Rows
from speculative_engine.model.packed_batch import Lane, PackedBatch

ROWS = 64
"""Rows of every pass. Fewer would mean less work for a single sequence, where it hardly matters, but more passes for a
prompt."""


class FixedRows:
    """Runs steps in passes of ROWS rows: smaller steps are padded, larger ones split."""

    def __init__(self, run: Callable[[FixedBatch], Rows]):
        """run: runs the model over a batch; returns all its rows, wanted or not."""
        self._run = run

    def forward(self, batch: PackedBatch) -> Rows:
        """Runs one step: writes the rows' keys and values, returns the wanted rows' logits and hidden states."""
        parts: list[tuple[Tensor, Tensor]] = []
        for part in split(batch, ROWS):
            logits, states, _ = self._run(padded(part, ROWS))
            wanted = to_device(torch.tensor(part.wanted, dtype=torch.int64), batch.device)
            parts.append((logits.index_select(0, wanted), states.index_select(0, wanted)))
        logits, states = (torch.cat(each) for each in zip(*parts, strict=True))
        order = np.argsort(np.argsort(np.array(batch.wanted) // ROWS, kind="stable"), kind="stable")
        place = to_device(torch.from_numpy(order), batch.device)
        return Rows(logits.index_select(0, place), states.index_select(0, place))


def split(batch: PackedBatch, most: int) -> list[PackedBatch]:
    """Splits a batch into batches of at most `most` rows that, run in order, compute the same.

    Rows come after the rows they see. Rows that are in an earlier batch join the context of the lane.
    """
    parts: list[PackedBatch] = []
    slots = batch.host[2].numpy()
    for begin in range(0, len(batch), most):
        end = min(begin + most, len(batch))
        lanes: list[Lane] = []
        for lane in batch.lanes:
            before = [row for row in lane.rows if row < begin]
            here = [row - begin for row in lane.rows if begin <= row < end]
            asked = sum(begin <= row < end for row in lane.rows[lane.first_query :])
            if asked:
                context = np.concatenate([lane.context, slots[before]]) if before else lane.context
                lanes.append(Lane(context, here, len(here) - asked))
        wanted = [row - begin for row in batch.wanted if begin <= row < end]
        parts.append(PackedBatch(batch.host[:, begin:end], wanted, lanes, batch.group_size, batch.device))
    return parts


def padded(batch: PackedBatch, rows: int) -> FixedBatch:
    """The batch padded to `rows` rows; padding writes to the padding slot, and no lane has it."""
    count = len(batch)
    host = torch.zeros(3, rows, dtype=torch.int64)
    host[2] = PADDING_SLOT
    host[:, :count] = batch.host
    return FixedBatch(host, batch.wanted, batch.lanes, batch.group_size, batch.device)
