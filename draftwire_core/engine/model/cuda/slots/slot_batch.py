"""Packed batches for attention by slots, in tensors of fixed sizes, at fixed addresses from step to step."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from draftwire_core.engine.device.device_block import DeviceBlock
from draftwire_core.engine.kernels.kv_rows import elements
from draftwire_core.engine.kv.kv_slots import PADDING_SLOT
from draftwire_core.engine.model.cuda.slots.slot_layout import SlotLayout, SlotMove
from draftwire_core.engine.model.cuda.slots.tapped_rows import TappedRows
from draftwire_core.engine.model.cuda.work.parts import part_count
from draftwire_core.engine.model.cuda.work.slot_work import (
    ASKED,
    ITEM,
    MOST_PARTIALS,
    MOVE,
    RESIDENT,
    SEGMENT,
    PlacedWork,
    Round,
    segments_at,
    work_numbers,
)
from draftwire_core.engine.model.packed_batch import PackedBatch
from draftwire_core.engine.model.rows import FixedRows
from draftwire_core.engine.sampling.step_draws import NUMBERS, StepDraws, write_none


class BatchRoom(NamedTuple):
    """The most that a batch's tensors hold; see `SlotLayout`."""

    rows: int
    items: int
    numbers: int
    """Numbers of items, segments, slots and moves together."""
    rounds: int = 1
    partials: int = MOST_PARTIALS
    """Partial sums of a round."""

    @classmethod
    def of_step(cls, rows: int, seen: int) -> BatchRoom:
        """Room for steps of up to `rows` rows that see up to `seen` slots, except very many rows with long contexts."""
        partials = min(MOST_PARTIALS, rows * (part_count(seen) + 1))
        numbers = work_numbers(partials, 3 * partials + rows, seen, part_count(seen) + rows)
        return cls(rows, partials, numbers, partials=partials)

    @classmethod
    def of_layout(cls, rows: int, layout: SlotLayout) -> BatchRoom:
        """Room for one layout, with `rows` rows."""
        rounds = layout.rounds
        partials = max(each.partials for each in rounds)
        return cls(rows, len(layout.items), layout.numbers, len(rounds), partials)

    def holds(self, layout: SlotLayout) -> bool:
        """Whether a layout fits."""
        return (
            len(layout.asked) <= self.rows
            and len(layout.items) <= self.items
            and layout.numbers <= self.numbers
            and len(layout.rounds) <= self.rounds
            and max(each.partials for each in layout.rounds) <= self.partials
        )


_LEAST_SEEN, _MOST_SEEN = 4096, 1 << 20


def most_seen(slots: int) -> int:
    """Slots that tensors for steps of any contexts list at most. slots: of the KV cache."""
    # Sequences may share slots, which are then listed for each.
    return min(max(2 * slots, _LEAST_SEEN), _MOST_SEEN)


class SlotRows(FixedRows):
    """The rows of one forward pass, which attend by slots."""

    tapped: TappedRows | None = None
    """The memory that keeps hidden states for taps; None if the pass keeps none."""

    @property
    @abstractmethod
    def work(self) -> list[PlacedWork]:
        """The work of attention, in rounds."""

    def write_and_attend(
        self,
        query: Tensor,
        new: tuple[Tensor, Tensor],
        stored: tuple[Tensor, Tensor],
        scaling: float,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """See FixedRows; for transformers' own layers."""
        # Triton need not be there where other batches run.
        from draftwire_core.engine.model.cuda.kernels.attention import attend_slots
        from draftwire_core.engine.model.cuda.kernels.key_rows import write_keys

        new_keys, new_values = (each if each.stride(-1) == 1 else each.contiguous() for each in new)
        keys, values = (each.transpose(0, 1) for each in stored)
        write_keys(new_keys, new_values, keys, values, self.slots)
        rows = query.transpose(0, 1)
        rows = rows if rows.stride(-1) == 1 else rows.contiguous()
        out = torch.empty(*rows.shape[:2], elements(values), dtype=query.dtype, device=query.device)
        for work in self.work:
            attend_slots(work, rows, keys, values, out, scaling, window, softcap, sinks)
        return out


class SlotBatch(SlotRows):
    """The rows of one forward pass, and the work of their attention.

    Rows keep their order. Padding rows come last; each writes to the padding slot and sees nothing.
    """

    def __init__(self, room: BatchRoom, device: torch.device, tables: Tensor | None = None):
        """tables: of the slots that earlier steps have listed, int32; needed for layouts that refer to them."""
        self.room = room
        rows = room.rows
        int32, int64 = torch.int32, torch.int64
        self._block = DeviceBlock(
            {
                "token_ids": ((rows,), int64),
                "positions": ((rows,), int64),
                "slots": ((rows,), int64),
                "wanted": ((rows,), int64),
                "draws": ((NUMBERS, rows), int64),
                "ranges": ((room.rounds, 2), int32),
                "asked": ((rows, ASKED), int32),
                # Items, segments, slots and moves, one after the other: what is not used of it is not copied.
                "work": ((room.numbers,), int32),
            },
            device,
        )
        placed = self._block.device
        super().__init__(placed["token_ids"], placed["positions"], placed["slots"], placed["draws"])
        self._tables = placed["work"] if tables is None else tables
        self._wanted = 0
        self._rounds = [Round(0, 0, 0, rows, 0)]
        self.moves: list[SlotMove] = []
        """The part of the last batch's slots to be copied into the tables after the pass."""
        self.first_move = 0
        """The place of the list in `numbers`."""
        self._pad(0)
        write_none(self._block.host["draws"])
        self._block.send()

    @property
    def wanted(self) -> Tensor:
        """The rows whose results the last batch wants, in its order, int64 [wanted]."""
        return self._block.device["wanted"][: self._wanted]

    def fill(
        self, batch: PackedBatch, layout: SlotLayout, draws: StepDraws | None = None, *, whole: bool = True
    ) -> None:
        """Copies in a batch, whose layout the room holds.

        draws: the tokens to draw. whole: whether the pass returns the logits of all rows, or of the wanted ones alone.
        """
        count = len(batch)
        if len(batch.wanted) > len(self):
            raise ValueError(f"{len(batch.wanted)} of {len(self)} rows are wanted")
        self._block.begin()
        host = self._block.host
        for name, given in zip(("token_ids", "positions", "slots"), batch.numbers, strict=True):
            host[name][:count] = given
        self._wanted = len(batch.wanted)
        host["wanted"][: self._wanted] = batch.wanted
        if draws is None:
            write_none(host["draws"])
        else:
            rows = host["wanted"] if whole else np.arange(self._wanted)
            draws.write(host["draws"], rows[: len(draws)])
        host["asked"][:count] = layout.asked
        self._rounds = layout.rounds
        host["ranges"][: len(self._rounds)] = [(each.first_item, each.last_item) for each in self._rounds]
        self._pad(count)
        self._block.send(self._write(host["work"], layout))

    def _write(self, work: np.ndarray, layout: SlotLayout) -> int:
        """Writes items, segments, slots and moves; returns how many numbers these are. Indices are those of `work`."""
        segments = segments_at(len(layout.items))
        seen = segments + layout.segments.size
        self.first_move = seen + len(layout.seen)
        end = self.first_move + MOVE * len(layout.moves)
        items = work[: layout.items.size].reshape(-1, ITEM)
        items[:] = layout.items
        items[:, 2:4] += segments // SEGMENT
        told = work[segments:seen].reshape(-1, SEGMENT)
        told[:] = layout.segments
        told[told[:, 3] != RESIDENT, 0] += seen
        work[seen : self.first_move] = layout.seen
        self.moves = layout.moves
        if self.moves:
            work[self.first_move : end] = [
                number for move in self.moves for number in (seen + move.source, move.target, move.slots)
            ]
        return end

    @property
    def sent_bytes(self) -> int:
        """Bytes of the last batch's numbers, which one copy has sent."""
        return self._block.sent_bytes

    @property
    def numbers(self) -> Tensor:
        """Items, segments, slots and moves on the device, int32."""
        return self._block.device["work"]

    @property
    def work(self) -> list[PlacedWork]:
        """The work of attention, in rounds; one of the tensors' size in tensors that hold steps of any layout."""
        placed = self._block.device
        whole = self.room.rounds == 1
        found = []
        for index, each in enumerate(self._rounds):
            last = len(self) if index + 1 == len(self._rounds) else each.last_place
            work = PlacedWork(
                placed["ranges"][index],
                placed["work"],
                placed["work"],
                placed["asked"],
                placed["work"],
                self._tables,
                first_place=each.first_place,
                places=last - each.first_place,
                most_items=self.room.items if whole else each.last_item - each.first_item,
                partials=self.room.partials if whole else each.partials,
            )
            found.append(work)
        return found

    def _pad(self, count: int) -> None:
        """Makes padding of the rows from `count` on."""
        host = self._block.host
        for name, padding in (("token_ids", 0), ("positions", 0), ("slots", PADDING_SLOT)):
            host[name][count:] = padding
        asked = host["asked"][count:]
        asked[:, 0] = np.arange(count, len(self))
        asked[:, 1:3], asked[:, 3] = -1, 0
