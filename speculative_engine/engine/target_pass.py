"""One forward pass of the target: lays out rows, edits logits, draws tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, float32

from speculative_engine.acceptance.coupled import walk_on_device
from speculative_engine.device_copy import to_device
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
    """The result of a forward pass of the target."""

    asked: AskedRows
    """The rows of all jobs, in job order."""
    scores: list[Score]
    prompts: dict[int, LogProbs]
    """Log-probabilities of prompts' next tokens, by sequence."""
    rows: int
    seen: int
    """Total number of positions that the rows attended to."""


class StepDraw(NamedTuple):
    """The drawn tokens, by row."""

    tokens: list[int]
    """The target's token after each row; -1 where the logits are bad."""
    on_path: list[bool] | None
    """Whether each row is on the path of the drawn tokens; None if the host has to walk the path."""


def draw_step(logits: Tensor, batch: SamplingBatch) -> StepDraw:
    """Draws tokens with the reference sampler, on whichever device the logits are. logits [rows, V]."""
    return StepDraw(sample(logits, batch).token_ids.tolist(), None)


def tree_on_device(jobs: Sequence[VerificationJob], device: torch.device) -> Tensor:
    """The jobs' rows, in job order, for `draw_step_on_device`: token and parent's row of each, int64 [2, rows]."""
    tokens: list[int] = []
    parents: list[int] = []
    for job in jobs:
        first, rows = len(tokens), job.tree_rows()
        probes = len(job.sampled_positions) - len(rows)
        if probes >= 0:  # a job without these draws nothing in this step
            tokens += [*rows.tokens, *[-1] * probes]
            parents += [first + max(0, parent) for parent in (*rows.parents, *[0] * probes)]
    return to_device(torch.tensor([tokens, parents], dtype=torch.int64), device)


def draw_step_on_device(logits: Tensor, batch: SamplingBatch, tree: Tensor) -> StepDraw:
    """Draws as `draw_step` does, but synchronizes with the device only once, at the end.

    Batches that filter tokens, and the few rows that the device sampler leaves unsettled, use the sampler of
    `draw_step`. logits [rows, V]; tree: of the same rows, see `tree_on_device`.
    """
    if batch.filters:
        return draw_step(logits, batch)
    found = draw(logits, batch)
    path = walk_on_device(found.token_ids, *tree)
    drawn, kept, settled = torch.stack([found.token_ids, path, found.settled]).cpu()
    unsettled = (settled == 0).nonzero()[:, 0].tolist()
    if unsettled:
        drawn[unsettled] = sample(logits[unsettled], batch.select(unsettled)).token_ids.cpu()
        return StepDraw(drawn.tolist(), None)
    return StepDraw(drawn.tolist(), kept.bool().tolist())


class EditedLogits:
    """Applies the logit editors of all jobs of a step."""

    def __init__(self, jobs: Iterable[VerificationJob]):
        self._parts: list[tuple[VerificationJob, slice, TreeRows]] = []
        first = 0
        for job in jobs:
            if job.sampled_positions and job.sequence.spec.editors:
                rows = job.tree_rows()
                self._parts.append((job, slice(first, first + len(rows)), rows))
            first += len(job.sampled_positions)

    def prepare(self) -> None:
        """Prepares the editors, before the forward pass or while it runs elsewhere."""
        for job, _, rows in self._parts:
            for editor in job.sequence.spec.editors:
                editor.prepare(rows)

    def apply(self, logits: Tensor) -> Tensor:
        """Returns the logits [rows, V] to draw from: an edited float32 copy, or `logits` itself if nothing edits
        them."""
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
        """Runs one forward pass and draws the target's own token after each row that asks for one.

        scored: number of rows of texts to score, from `Scoring.rows`.
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
        params: list[SamplingParams] = []
        positions: list[int] = []
        for job in jobs:
            params.extend([job.sequence.sampling] * len(job.sampled_positions))
            positions.extend(job.sampled_positions)
        # Before the pass: afterwards the device has nothing else to do meanwhile.
        sampling = SamplingBatch.build(params, positions, model.device) if params else None
        tree = tree_on_device(jobs, model.device) if params and model.steps is not None else None
        self._clock.enter("forward")
        states: torch.Tensor | None = None
        if any(job.sampled_positions and self._local.wants_states(job.sequence) for job in jobs):
            logits, states = model.forward_with_states(batch)
        else:
            logits = model.forward(batch)
        self._clock.enter("sample")
        drawn = StepDraw([], None)
        edited = logits
        if sampling is not None:
            edited = editing.apply(logits[: len(params)])
            if tree is None:
                drawn = draw_step(edited[: len(params)], sampling)
            else:
                drawn = draw_step_on_device(edited[: len(params)], sampling, tree)
        scores = self._scoring.settle(parts, logits[len(params) :])
        told = prompts.settle(logits)
        return ComputedStep(AskedRows(*drawn, edited, logits, states), scores, told, len(builder), builder.seen)
