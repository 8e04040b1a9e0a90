"""The slots of sequences by position, kept on the device from step to step, in pages of one part each.

A step lists the slots that the tables lack, and attention reads them there. After the pass a kernel copies them from
the step's numbers into the tables, for the steps after it. So each slot is sent once, and a step that no sequence
enters a new tile in asks for nothing more than before.
"""

from __future__ import annotations

import weakref
from collections import deque
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from draftwire_core.engine.kv.kv_slots import SlotList
from draftwire_core.engine.model.cuda.slots.slot_layout import SlotMove
from draftwire_core.engine.model.cuda.work.parts import begin_of, part_count
from draftwire_core.engine.model.cuda.work.slot_work import PAGE, RESIDENT, SEGMENT, TILE_KEYS

_SPARE_PAGES = 256
"""Pages beyond those of full ones: each sequence has one that is not full."""


_NO_SEGMENTS = np.empty((0, SEGMENT), dtype=np.int64)


class KnownSlots(NamedTuple):
    """The part of a sequence that the tables hold, see `slot_layout.Known`."""

    known: int
    segments: np.ndarray
    pages: np.ndarray
    room: int


class _Table:
    """The pages of one sequence."""

    def __init__(self, owner: weakref.ref[SlotList]):
        self.owner = owner
        self.generation = -1
        self.known = 0
        """Positions whose slots are on the device."""
        self.pages = np.empty(0, dtype=np.int64)
        self.segments = _NO_SEGMENTS
        """The segments of `known`."""

    def know(self, positions: int) -> None:
        """Notes that so many positions are known."""
        self.known, self.segments = positions, self.segments_of(positions)

    def segments_of(self, positions: int) -> np.ndarray:
        """The segments of so many positions."""
        parts = np.arange(part_count(positions))
        begins = begin_of(parts)
        pages = begins // PAGE
        bases = (self.pages[pages] - pages) * PAGE
        ends = np.minimum(begin_of(parts + 1), positions)
        return np.stack([bases, begins, ends, np.full(len(begins), RESIDENT)], 1)


class SlotTables:
    """Tables of the sequences of one model."""

    def __init__(self, seen: int, device: torch.device):
        """seen: slots that all sequences have at most."""
        pages = -(-seen // PAGE) + _SPARE_PAGES
        self.tensor = torch.zeros(pages * PAGE, dtype=torch.int32, device=device)
        """Slots by page and place, int32."""
        self._free = list(range(pages))
        self._tables: dict[int, _Table] = {}
        self._gone: deque[int] = deque()
        """Keys of tables whose sequences are gone; collected by whichever thread lets go of one."""
        self._launch(self.tensor, 0, 1)  # compiles the kernel; the tables are zeros, which say that nothing is copied

    @property
    def used(self) -> int:
        """Number of pages in use."""
        return len(self.tensor) // PAGE - len(self._free)

    def look_up(self, owner: SlotList, length: int) -> KnownSlots:
        """A sequence as known of which a step sees `length` positions, which end with a tile; takes pages for
        these as far as there are any."""
        table = self._table(owner)
        if table.known == length:
            return KnownSlots(length, table.segments, table.pages, length)
        whole = min(length, len(owner) // TILE_KEYS * TILE_KEYS)
        lacking = -(-whole // PAGE) - len(table.pages)
        if lacking > 0 and self._free:
            taken = self._free[-lacking:]
            del self._free[-lacking:]
            table.pages = np.concatenate([table.pages, np.array(taken, dtype=np.int64)])
        room = min(whole, len(table.pages) * PAGE)
        if table.known > whole:
            return KnownSlots(whole, table.segments_of(whole), table.pages, room)
        return KnownSlots(table.known, table.segments, table.pages, room)

    def move(self, work: torch.Tensor, first: int, moves: list[SlotMove]) -> None:
        """Queues the copies of slots from a step's numbers, int32, in which their list begins at `first`, and notes
        that they are known."""
        self._launch(work, first, len(moves))
        for move in moves:
            table = self._table(move.owner)
            table.know(max(table.known, move.end))

    def _launch(self, work: torch.Tensor, first: int, moves: int) -> None:
        from draftwire_core.engine.model.cuda.kernels.table_copies import move_slots  # needs Triton

        with torch.cuda.device_of(self.tensor):  # Triton launches on the current device
            move_slots(work, self.tensor, first, moves)

    def _table(self, owner: SlotList) -> _Table:
        while self._gone:
            self._forget(self._gone.popleft())
        key = id(owner)
        table = self._tables.get(key)
        if table is None or table.owner() is not owner:
            self._forget(key)
            table = self._tables[key] = _Table(weakref.ref(owner, partial(_note, self._gone, key)))
        if table.generation != owner.generation:
            table.generation = owner.generation
            table.know(0)
        return table

    def _forget(self, key: int) -> None:
        """Frees the pages of a table whose sequence is gone; another one may have its key by now."""
        table = self._tables.get(key)
        if table is not None and table.owner() is None:
            self._free += table.pages.tolist()
            del self._tables[key]


def _note(gone: deque[int], key: int, _: object) -> None:
    gone.append(key)
