"""Forward passes for attention by slots, whose sizes are numbers of rows alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from draftwire_core.engine.model.cuda.captured_steps import CapturedSteps
from draftwire_core.engine.model.cuda.slots.slot_batch import BatchRoom, SlotBatch, most_seen
from draftwire_core.engine.model.cuda.slots.slot_layout import SlotLayout
from draftwire_core.engine.model.cuda.slots.slot_tables import SlotTables
from draftwire_core.engine.model.cuda.slots.tapped_rows import TappedRows, tapped_layers
from draftwire_core.engine.model.packed_batch import PackedBatch
from draftwire_core.engine.model.rows import Rows
from draftwire_core.engine.sampling.step_draws import StepDraws

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Rows of the steps that are captured. Larger ones are prompts, whose kernels take longer than launching them."""
_ROWS_STEP = 64
"""Larger numbers of rows are rounded up to multiples of this."""


class SlotSteps(CapturedSteps[int, SlotBatch]):
    """Runs a step in the tensors of the smallest number of rows that holds it; in new tensors if none does."""

    def __init__(
        self,
        run: Callable[[SlotBatch, Tensor | None], Rows],
        slots: int,
        device: torch.device,
        rows: tuple[int, ...] = ROWS,
        tapped: TappedRows | None = None,
        features: Tensor | None = None,
    ):
        """slots: of the KV cache. rows: ascending. tapped: the memory that keeps hidden states of captured steps for
        taps; None if no batch has any. features: an empty tensor [0, width] like the vectors that the model reads next
        to tokens; None if it reads none. For `run` see CapturedSteps."""
        seen = most_seen(slots)
        self.tables = tables = SlotTables(seen, device)
        """The knowledge of the steps about sequences from earlier ones."""
        self._tapped = tapped
        self._features = features

        def make(size: int) -> SlotBatch:
            batch = SlotBatch(BatchRoom.of_step(size, seen), device, tables.tensor)
            batch.tapped = tapped
            batch.features = None if features is None else features.new_zeros(size, features.shape[1])
            return batch

        super().__init__(run, list(reversed(rows)), make, device)

    def _filled(self, batch: PackedBatch, draws: StepDraws | None) -> tuple[SlotBatch, int | None]:
        count = len(batch)
        layout = SlotLayout.of(batch, self.tables)
        size = next((each for each in reversed(self._sizes) if each >= count), None)
        rows = -(-count // _ROWS_STEP) * _ROWS_STEP if size is None else size
        if size is not None and not self._batch(size).room.holds(layout):
            size = None
        layers = tapped_layers(batch.taps)
        if size is not None and self._tapped is not None and not self._tapped.choose(layers):
            size = None
        if size is None:
            fixed = SlotBatch(BatchRoom.of_layout(rows, layout), self._device, self.tables.tensor)
            if self._tapped is not None:
                fixed.tapped = self._tapped.other(len(layers), rows)
                fixed.tapped.choose(layers)
        else:
            fixed = self._batch(size)
            fixed.features = None if self._features is None else self._features.new_zeros(rows, self._features.shape[1])
        fixed.fill(batch, layout, draws, whole=size is not None)
        if fixed.features is not None and batch.features is not None:
            fixed.features[:count] = batch.features
        return fixed, size

    def _launched(self, fixed: SlotBatch, batch: PackedBatch) -> None:
        moves, fixed.moves = fixed.moves, []
        if moves:
            self.tables.move(fixed.numbers, fixed.first_move, moves)
        if fixed.tapped is not None:
            fixed.tapped.give(batch, fixed.slots)
