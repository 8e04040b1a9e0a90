"""Several steps of drafting in tensors of fixed sizes, at fixed addresses, sent to the device by one copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from draftwire_core.engine.device.device_block import DeviceBlock
from draftwire_core.engine.kv.kv_slots import PADDING_SLOT
from draftwire_core.engine.model.cuda.slots.draft_layout import DraftCandidate, DraftLayout, DraftRow
from draftwire_core.engine.model.cuda.slots.feeding import Feeding
from draftwire_core.engine.model.cuda.slots.slot_batch import BatchRoom, SlotRows
from draftwire_core.engine.model.cuda.work.slot_work import ASKED, ITEM, SEGMENT, PlacedWork
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.step_draws import NUMBERS, StepDraws, write_none

DRAFT_WIDTH = 3
"""Best tokens that are found after each row."""
_RANKED = 2
"""Numbers of a candidate: the token, and the bits of its log-probability."""


class DraftSize(NamedTuple):
    """The size of a draft."""

    steps: int
    rows: int
    """Rows of a step."""


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """The rows of some steps, of which the tokens of the later ones are not known yet."""

    contexts: list[np.ndarray]
    """Slots by position of each sequence, int64."""
    steps: list[list[DraftRow]]
    """The rows of each step, those of a sequence adjacent and in order of sequences."""
    sampling: list[SamplingBatch]
    """Parameters with which the candidates after each row are found, by step, on the host; no row has typical_p. The
    first step's last rows may have none."""
    reads: list[list[int]] | None = None
    """The vector that each row reads next to its token, see `Feeding.feed`, by step; None for models without."""

    @property
    def size(self) -> DraftSize:
        """The least size that holds it."""
        return DraftSize(len(self.steps), max(map(len, self.steps)))


class DraftStepRows(SlotRows):
    """The rows of one step of a draft."""

    def __init__(self, tokens: Tensor, positions: Tensor, slots: Tensor, draws: Tensor, work: PlacedWork):
        super().__init__(tokens, positions, slots, draws)
        self._work = work

    @property
    def work(self) -> list[PlacedWork]:
        """The work of attention."""
        return [self._work]


class DraftBatch:
    """The rows of some steps, the work of their attention, and what is found after them."""

    def __init__(self, size: DraftSize, seen: int, device: torch.device, feeding: Feeding | None = None):
        """seen: most slots that are listed. feeding: for a model that reads features."""
        self.size = size
        self._room = room = BatchRoom.of_step(size.rows, seen)
        self._segments = 2 * room.partials  # of a step
        self._seen = seen
        int32, int64 = torch.int32, torch.int64
        self._block = DeviceBlock(
            {
                "tokens": (size, int64),
                "sources": (size, int64),
                "reads": (size, int64),
                "positions": (size, int64),
                "slots": (size, int64),
                "draws": ((size.steps, NUMBERS, size.rows), int64),
                "ranges": ((size.steps, 2), int32),
                "asked": ((*size, ASKED), int32),
                "items": ((size.steps * room.items, ITEM), int32),
                "segments": ((size.steps * self._segments, SEGMENT), int32),
                "seen": ((seen,), int32),  # last, so that unused ones are not copied
            },
            device,
        )
        placed = self._block.device
        self.sources = placed["sources"]
        """Indices in `ranked` of the tokens that are found on the way, int64 [steps, rows]; -1 for the others."""
        self.reads = placed["reads"]
        """The vectors that rows read next to their tokens, see `Feeding.feed`, int64 [steps, rows]."""
        self.ranked = torch.zeros(*size, _RANKED, DRAFT_WIDTH, dtype=int32, device=device)
        """The candidates after each row, see `KernelSampler.rank`, [steps, rows, 2, DRAFT_WIDTH]."""
        self.steps = [
            DraftStepRows(
                placed["tokens"][step],
                placed["positions"][step],
                placed["slots"][step],
                placed["draws"][step],
                PlacedWork(
                    placed["ranges"][step],
                    placed["items"],
                    placed["segments"],
                    placed["asked"][step],
                    placed["seen"],
                    placed["seen"],
                    first_place=0,
                    places=size.rows,
                    most_items=room.items,
                    partials=room.partials,
                ),
            )
            for step in range(size.steps)
        ]
        if feeding is not None:
            tapped = feeding.tapped(size.rows)
            for rows in self.steps:
                rows.tapped = tapped
                rows.features = feeding.own.new_zeros(size.rows, feeding.own.shape[1])
        self._pad()
        self._block.send()

    def holds(self, layout: DraftLayout) -> bool:
        """Whether a layout of as many steps, with no more rows, fits."""
        return (
            len(layout.items) <= self.size.steps * self._room.items
            and len(layout.segments) <= self.size.steps * self._segments
            and len(layout.seen) <= self._seen
            and max(each.partials for each in layout.steps) <= self._room.partials
        )

    def fill(self, plan: DraftPlan, layout: DraftLayout) -> None:
        """Copies in a plan of as many steps, with no more rows, whose layout the tensors hold."""
        self._block.begin()
        self._pad()
        host = self._block.host
        for step, (rows, work) in enumerate(zip(plan.steps, layout.steps, strict=True)):
            count = len(rows)
            for at, row in enumerate(rows):
                if isinstance(row.token, DraftCandidate):
                    host["sources"][step, at] = self._index(row.token)
                else:
                    host["tokens"][step, at] = row.token
                host["slots"][step, at] = row.slot
            host["positions"][step, :count] = work.asked[:, 2]
            host["asked"][step, :count] = work.asked
            host["ranges"][step] = work.first_item, work.last_item
            draws = StepDraws.of_roots(plan.sampling[step])
            draws.write(host["draws"][step], np.arange(len(draws)))
            if plan.reads is not None:
                host["reads"][step, :count] = plan.reads[step]
        host["items"][: len(layout.items)] = layout.items
        host["segments"][: len(layout.segments)] = layout.segments
        host["seen"][: len(layout.seen)] = layout.seen
        self._block.send(len(layout.seen))

    def _index(self, candidate: DraftCandidate) -> int:
        return ((candidate.step * self.size.rows + candidate.row) * _RANKED) * DRAFT_WIDTH + candidate.rank

    def _pad(self) -> None:
        """Makes padding of all rows."""
        host = self._block.host
        for name, padding in (
            ("tokens", 0),
            ("sources", -1),
            ("reads", -1 - PADDING_SLOT),  # a feature that stays zeros
            ("positions", 0),
            ("slots", PADDING_SLOT),
            ("ranges", 0),
        ):
            host[name][:] = padding
        asked = host["asked"]
        asked[:, :, 0] = np.arange(self.size.rows)
        asked[:, :, 1:3], asked[:, :, 3] = -1, 0
        for draws in host["draws"]:
            write_none(draws)


def candidates_of(
    ranked: Tensor, steps: Sequence[Sequence[DraftRow]]
) -> tuple[list[list[list[int]]], list[list[list[float]]]]:
    """Tokens and log-probabilities, by step, row and rank, of `DraftBatch.ranked` on the host."""
    tokens, log_probs = ranked[:, :, 0], ranked[:, :, 1].view(torch.float32)
    return (
        [found[: len(rows)].tolist() for found, rows in zip(tokens, steps, strict=True)],
        [found[: len(rows)].tolist() for found, rows in zip(log_probs, steps, strict=True)],
    )
