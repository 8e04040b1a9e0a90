"""Encodes packed batches as arrays of integers, so that other processes can run the same forward passes.

A lane's context changes little from step to step. It is encoded as a prefix of an earlier context, of this step or the
last, and the slots that follow it: committed tokens add slots, a rollback shortens the prefix. The size of the encoding
therefore does not grow with the context.
"""

from __future__ import annotations

import numpy as np
import torch

from draftwire_core.engine.model.packed_batch import Lane, PackedBatch

_HEAD = 4
_LANE = 5
_SAME = -1
"""In place of an earlier context: that of the lane before, in the same batch. Lanes of one sequence share it."""
_MARK = 64
"""Contexts are matched by their slots at the last two multiples of this position."""


class StepEncoder:
    """Encodes the batches of one process, in order, for a `StepDecoder`."""

    def __init__(self) -> None:
        self._before: list[np.ndarray] = []
        self._marks: dict[tuple[int, int], int] = {}

    def encode(self, batch: PackedBatch) -> np.ndarray:
        """Returns the batch as int64 [numbers]."""
        known, marks = list(self._before), dict(self._marks)
        told: list[np.ndarray] = []
        lanes = np.empty((len(batch.lanes), _LANE), dtype=np.int64)
        tails: list[np.ndarray] = []
        for index, lane in enumerate(batch.lanes):
            if index and lane.context is batch.lanes[index - 1].context:
                lanes[index] = _SAME, 0, 0, len(lane.rows), lane.first_query
                known.append(known[-1])
                told.append(told[-1])
                continue
            reference, kept = _begun(lane.context, known, marks)
            tail = lane.context[kept:]
            lanes[index] = reference, kept, len(tail), len(lane.rows), lane.first_query
            tails.append(tail)
            context = (
                known[reference] if kept == len(lane.context) == _length(known, reference) else lane.context.copy()
            )
            _mark(context, len(known), marks)
            known.append(context)
            told.append(context)
        self._before, self._marks = told, {}
        for index, context in enumerate(told):
            _mark(context, index, self._marks)
        head = [len(batch), len(batch.wanted), len(batch.lanes), batch.group_size]
        parts: list[list[int] | np.ndarray] = [head, batch.numbers.reshape(-1), batch.wanted, lanes.reshape(-1)]
        parts += [*tails, *(lane.rows for lane in batch.lanes)]
        return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])


class StepDecoder:
    """Decodes the batches of a `StepEncoder`; needs all of them, in order."""

    def __init__(self) -> None:
        self._before: list[np.ndarray] = []

    def decode(self, numbers: np.ndarray, device: torch.device) -> PackedBatch:
        """Returns the batch, which shares the memory of `numbers`, int64 [n]. Raises ValueError for a wrong length."""
        rows, wanted, lane_count, group_size = (int(each) for each in numbers[:_HEAD])
        lengths = [3 * rows, wanted, lane_count * _LANE]
        *parts, rest = np.split(numbers[_HEAD:], np.cumsum(lengths))
        lanes = parts[2].reshape(-1, _LANE)
        lane_rows = rest[int(lanes[:, 2].sum()) :]
        if len(lane_rows) != lanes[:, 3].sum():
            raise ValueError(f"a packed step of {len(numbers)} numbers does not match its head")
        known = list(self._before)
        told: list[Lane] = []
        slot = row = 0
        for reference, kept, tail, count, first_query in lanes.tolist():
            if reference == _SAME:
                context = told[-1].context
            else:
                begun = known[reference][:kept] if kept else rest[:0]
                context = np.concatenate([begun, rest[slot : slot + tail]]) if tail else begun
            known.append(context)
            told.append(Lane(context, lane_rows[row : row + count].tolist(), first_query))
            slot, row = slot + tail, row + count
        self._before = [lane.context for lane in told]
        return PackedBatch(
            numbers[_HEAD : _HEAD + 3 * rows].reshape(3, rows), parts[1].tolist(), told, group_size, device
        )


def _begun(context: np.ndarray, known: list[np.ndarray], marks: dict[tuple[int, int], int]) -> tuple[int, int]:
    """The index of a known context that shares a prefix with this one, and the prefix's length; 0 if none is found."""
    last = (len(context) - 1) // _MARK * _MARK
    for position in (last, last - _MARK):
        if position < 0:
            break
        reference = marks.get((position, int(context[position])))
        if reference is not None:
            other = known[reference]
            length = min(len(other), len(context))
            differing = np.flatnonzero(other[:length] != context[:length])
            return reference, int(differing[0]) if len(differing) else length
    return 0, 0


def _mark(context: np.ndarray, index: int, marks: dict[tuple[int, int], int]) -> None:
    last = (len(context) - 1) // _MARK * _MARK
    for position in (last, last - _MARK):
        if position >= 0:
            marks[position, int(context[position])] = index


def _length(known: list[np.ndarray], reference: int) -> int:
    return len(known[reference]) if known else -1
