"""The logits of one step with the requests' own changes."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, float32, isfinite

from speculative_engine.engine.step_result import Finish
from speculative_engine.engine.verification_job import VerificationJob
from speculative_engine.logits.logit_editor import TreeRows


class EditedLogits:
    """Has the editors of all jobs of a step do their work."""

    def __init__(self, jobs: Iterable[VerificationJob]):
        self._parts: list[tuple[VerificationJob, slice, TreeRows]] = []
        first = 0
        for job in jobs:
            if job.sampled_positions and job.sequence.spec.editors:
                rows = job.tree_rows()
                self._parts.append((job, slice(first, first + len(rows)), rows))
            first += len(job.sampled_positions)

    def prepare(self) -> None:
        """Before the forward pass, or while it runs elsewhere."""
        for job, _, rows in self._parts:
            for editor in job.sequence.spec.editors:
                editor.prepare(rows)

    def apply(self, logits: Tensor) -> Tensor:
        """The logits [rows, V] to draw from: a float32 copy with the changes, or `logits` where there are none."""
        if not self._parts:
            return logits
        edited = logits.to(float32, copy=True)
        for job, which, rows in self._parts:
            for editor in job.sequence.spec.editors:
                editor.edit(edited[which], rows)
        return edited


def why_no_token(raw: Tensor) -> Finish:
    """Why none could be drawn from a row whose logits were these, [V], before the request's changes."""
    return Finish.NOTHING_ALLOWED if bool(isfinite(raw.max())) else Finish.FAULT
