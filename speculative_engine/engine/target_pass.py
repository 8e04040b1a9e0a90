"""One forward pass of the target, from its rows to what the target says after them."""

from __future__ import annotations

import torch

from speculative_engine.engine.computed_step import ComputedStep
from speculative_engine.engine.edited_logits import EditedLogits
from speculative_engine.engine.local_drafters import LocalDrafters
from speculative_engine.engine.prompt_log_probs import PromptLogProbs
from speculative_engine.engine.scoring import Scoring
from speculative_engine.engine.step_draw import StepDraw, draw_step, draw_step_on_device
from speculative_engine.engine.verification_job import AskedRows, VerificationJob
from speculative_engine.model.packed_batch import BatchBuilder
from speculative_engine.model.packed_model import PackedModel
from speculative_engine.planning.step_clock import StepClock
from speculative_engine.sampling.sampling_batch import SamplingBatch
from speculative_engine.sampling.sampling_params import SamplingParams


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
