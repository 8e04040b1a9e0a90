"""Several steps of drafting in one graph: the best tokens after a row are the rows of the next step, on the device.

Slots, positions and paths of all rows are given beforehand; see `draft_layout.py`. A row has the bits that it has in a
step of its own, since those do not depend on the other rows of a pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from draftwire_core.engine.device.device_copy import HostCopy
from draftwire_core.engine.model.cuda.captured_steps import CapturedSizes
from draftwire_core.engine.model.cuda.slots.draft_batch import (
    DRAFT_WIDTH,
    DraftBatch,
    DraftPlan,
    DraftSize,
    candidates_of,
)
from draftwire_core.engine.model.cuda.slots.draft_layout import DraftLayout
from draftwire_core.engine.model.cuda.slots.feeding import Feeding
from draftwire_core.engine.model.cuda.slots.slot_batch import SlotRows, most_seen
from draftwire_core.engine.model.rows import Rows
from draftwire_core.engine.sampling.kernel_sampler import KernelSampler

STEPS = (2, 4, 8)
"""Steps of the drafts that are captured."""
ROWS = (1, 4, 16)
"""Rows of each of their steps. Fewer differ little in time; with more a draft is no longer a matter of launches."""


RunStep = Callable[[SlotRows, Tensor | None], Rows]
"""Runs the model over the rows of a step and returns the given ones, or all."""


def rows_for(rows: int, width: int) -> int | None:
    """Rows of the steps of a draft that begins with so many: enough for the children of each, up to `width`, if there
    is such a size. None if they are too many."""
    return next((each for each in ROWS if each >= rows * width), ROWS[-1] if rows <= ROWS[-1] else None)


class DraftCandidates(NamedTuple):
    """The best tokens after each row of a draft, by step, row and rank."""

    token_ids: list[list[list[int]]]
    """-1 where there are fewer."""
    log_probs: list[list[list[float]]]


class DraftSteps(CapturedSizes[DraftSize, DraftBatch, Tensor]):
    """Runs drafts of several steps by one call."""

    def __init__(
        self,
        run: RunStep,
        sampler: KernelSampler,
        slots: int,
        group_size: int,
        device: torch.device,
        feeding: Feeding | None = None,
    ):
        """slots: of the KV cache. group_size: query heads per key-value head. feeding: for a model that reads
        features."""
        seen = most_seen(slots)
        sizes = [DraftSize(steps, rows) for rows in reversed(ROWS) for steps in reversed(STEPS)]
        work = partial(_drafted, run, sampler, feeding)
        super().__init__(work, sizes, lambda size: DraftBatch(size, seen, device, feeding), device)
        self._group_size = group_size

    @property
    def most_steps(self) -> int:
        """Steps of the longest draft that was captured; 0 if none was."""
        return STEPS[-1] if self.captured else 0

    @torch.inference_mode()
    def draft(self, plan: DraftPlan) -> DraftCandidates | None:
        """Runs a plan of one of STEPS steps. None, with nothing done, if the tensors do not hold it."""
        least = plan.size
        rows = next((each for each in ROWS if each >= least.rows), None)
        if least.steps not in STEPS or rows is None:
            return None
        layout = DraftLayout.of(plan.contexts, plan.steps, self._group_size)
        size = DraftSize(least.steps, rows)
        batch = self._batch(size)
        if layout is None or not batch.holds(layout):
            return None
        batch.fill(plan, layout)
        return DraftCandidates(*candidates_of(HostCopy(self._results(batch, size)).get(), plan.steps))


def _drafted(run: RunStep, sampler: KernelSampler, feeding: Feeding | None, batch: DraftBatch) -> Tensor:
    from draftwire_core.engine.model.cuda.kernels.table_copies import take_tokens  # needs Triton

    for step, rows in enumerate(batch.steps):
        with torch.cuda.device_of(batch.ranked):  # Triton launches on the current device
            if step:
                take_tokens(batch.ranked, batch.sources[step], rows.token_ids)
            if feeding is not None and rows.features is not None:
                feeding.feed(batch.reads[step], rows.features)
        found = run(rows, None)
        logits = found.logits if feeding is None else feeding.keep(rows.slots, rows.tapped, found)
        sampler.rank(logits, rows.draws, DRAFT_WIDTH, batch.ranked[step])
    return batch.ranked
