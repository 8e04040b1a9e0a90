"""The target's tokens after the rows of a step, and on devices the path they lead along, with one copy back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from speculative_engine.acceptance.coupled import walk_on_device
from speculative_engine.engine.verification_job import VerificationJob
from speculative_engine.sampling.coupled_sampler import sample
from speculative_engine.sampling.device_sampler import draw
from speculative_engine.sampling.sampling_batch import SamplingBatch


class StepDraw(NamedTuple):
    """What was drawn, by row."""

    tokens: list[int]
    """The target's token after each row; -1 where the logits are bad."""
    on_path: list[bool] | None
    """Whether each row is on the path that the tokens lead along; None where that has to be walked."""


def draw_step(logits: Tensor, batch: SamplingBatch) -> StepDraw:
    """Draw on the host, or wherever the logits are. logits [rows, V]."""
    return StepDraw(sample(logits, batch).token_ids.tolist(), None)


def draw_step_on_device(logits: Tensor, batch: SamplingBatch, jobs: Sequence[VerificationJob]) -> StepDraw:
    """As `draw_step`, but the device is asked once, at the end. logits [rows, V]: of the jobs' rows, in their order.

    Rows that filter tokens, and the few that are not settled without asking, are drawn by `draw_step`'s way.
    """
    if batch.filters:
        return draw_step(logits, batch)
    tokens: list[int] = []
    parents: list[int] = []
    for job in jobs:
        first, rows = len(tokens), job.tree_rows()
        probes = len(job.sampled_positions) - len(rows)
        if probes >= 0:  # else the job draws nothing in this step
            tokens += [*rows.tokens, *[-1] * probes]
            parents += [first + max(0, parent) for parent in (*rows.parents, *[0] * probes)]
    placed = torch.tensor([tokens, parents], dtype=torch.int64).to(logits.device)
    found = draw(logits, batch)
    path = walk_on_device(found.token_ids, *placed)
    drawn, kept, settled = torch.stack([found.token_ids, path, found.settled]).cpu()
    unsettled = (settled == 0).nonzero()[:, 0].tolist()
    if unsettled:
        drawn[unsettled] = sample(logits[unsettled], batch.select(unsettled)).token_ids.cpu()
        return StepDraw(drawn.tolist(), None)
    return StepDraw(drawn.tolist(), kept.bool().tolist())
