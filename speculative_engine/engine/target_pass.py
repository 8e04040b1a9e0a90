"""One forward pass of the target: rows laid out, logits edited, tokens drawn after them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, float32

from speculative_engine.acceptance.coupled import walk_on_device
from speculative_engine.engine.local_drafters import LocalDrafters
from speculative_engine.engine.prompt_log_probs import PromptLogProbs
from speculative_engine.engine.scoring import Score, Scoring
from speculative_engine.engine.verification_job import AskedRows, VerificationJob
from speculative_engine.logits.logit_editor import TreeRows
from speculative_engine.model.packed_batch import BatchBuilder
from speculative_engine.model.packed_model import PackedModel
from speculative_engine.planning.step_clock import StepClock
from speculative_engine.sampling.coupled_sampler import sample
from speculative_engine.sampling.device_sampler import draw
from speculative_engine.sampling.log_probs import LogProbs
from speculative_engine.sampling.sampling_batch import SamplingBatch
from speculative_engine.sampling.sampling_params import SamplingParams


class ComputedStep(NamedTuple):
    """A forward pass of the target."""

    asked: AskedRows
    """The rows of all jobs, one job after the other."""
    scores: list[Score]
    prompts: dict[int, LogProbs]
    """Log-probabilities of prompts' next tokens, by sequence."""
    rows: int
    seen: int
    """Positions that the rows have seen, all together."""


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


class TargetPass:
    """Runs the target on the rows of a step."""

    def __init__(self, model: PackedModel, clock: StepClock, scoring: Scoring, local: LocalDrafters):
        self._model = model
        self._clock = clock
        self._scoring = scoring
        self._local = local

    def compute(self, jobs: list[VerificationJob], scored: int) -> ComputedStep:
        """One forward pass, and the target's own token after each row that asked for one.

        scored: rows of texts to score, as `Scoring.rows` told.
        """
        model = self._model
        self._clock.enter("layout")
        builder = BatchBuilder()
        for job in jobs:
            job.lay_out(builder, model.pool)
        parts = self._scoring.lay_out(builder, scored)
        prompts = PromptLogProbs(jobs, builder)  # after all others that ask for logits
        batch = builder.build(model.group_size, model.device)
        editing = EditedLogits(jobs)
        editing.prepare()
        self._clock.enter("forward")
        states: torch.Tensor | None = None
        if any(job.sampled_positions and self._local.wants_states(job.sequence) for job in jobs):
            logits, states = model.forward_with_states(batch)
        else:
            logits = model.forward(batch)
        self._clock.enter("sample")
        params: list[SamplingParams] = []
        positions: list[int] = []
        for job in jobs:
            params.extend([job.sequence.sampling] * len(job.sampled_positions))
            positions.extend(job.sampled_positions)
        drawn = StepDraw([], None)
        edited = logits
        if params:
            edited = editing.apply(logits[: len(params)])
            sampling = SamplingBatch.build(params, positions, model.device)
            if model.steps is None:
                drawn = draw_step(edited[: len(params)], sampling)
            else:
                drawn = draw_step_on_device(edited[: len(params)], sampling, jobs)
        scores = self._scoring.settle(parts, logits[len(params) :])
        told = prompts.settle(logits)
        return ComputedStep(AskedRows(*drawn, edited, logits, states), scores, told, len(builder), builder.seen)
