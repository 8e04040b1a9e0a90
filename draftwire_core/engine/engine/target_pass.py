"""One forward pass of the target: lays out rows, edits logits, draws tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, float32

from draftwire_core.engine.engine.asked_rows import AskedRows
from draftwire_core.engine.engine.feature_streams import FeatureStreams
from draftwire_core.engine.engine.local_drafters import LocalDrafters
from draftwire_core.engine.engine.scoring import Score, Scoring
from draftwire_core.engine.engine.step_draw import StepDrawing
from draftwire_core.engine.engine.verification_job import VerificationJob
from draftwire_core.engine.logits.logit_editor import TreeRows
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_clock import StepClock
from draftwire_core.engine.sampling.log_probs import LogProbs, log_probs


class PromptLogProbs:
    """The rows of one step that yield prompt log-probabilities. Nothing of vocabulary size outlives the step."""

    def __init__(self, jobs: Iterable[VerificationJob], builder: BatchBuilder):
        """Requests the rows' logits as the last ones of the batch, after the jobs have been laid out."""
        self._parts: list[tuple[VerificationJob, range]] = []
        for job in jobs:
            sequence = job.sequence
            if sequence.spec.prompt_logprobs is None:
                continue
            start = len(sequence.slots)
            # A token's row yields the next token's distribution. Positions reported before a preemption are skipped.
            begin = max(start, sequence.told - 1)
            end = min(start + len(job.chain_rows), len(sequence.spec.tokens) - 1)
            if begin < end:
                for position in range(begin, end):
                    builder.want(job.chain_rows[position - start])
                self._parts.append((job, range(begin + 1, end + 1)))

    def __bool__(self) -> bool:
        """Whether log-probabilities of any prompt tokens are asked for."""
        return bool(self._parts)

    def settle(self, logits: Tensor) -> dict[int, LogProbs]:
        """Returns the log-probabilities of each prompt's next tokens, by sequence; logits: all that the batch
        requested."""
        told: dict[int, LogProbs] = {}
        first = len(logits) - sum(len(positions) for _, positions in self._parts)
        for job, positions in self._parts:
            sequence, spec = job.sequence, job.sequence.spec
            rows = logits[first : first + len(positions)]
            first += len(positions)
            tokens = spec.tokens[positions.start : positions.stop]
            assert spec.prompt_logprobs is not None, "sequences without prompt_logprobs have no part"
            told[spec.sequence_id] = log_probs(rows, tokens, spec.prompt_logprobs)
            sequence.told = positions.stop
        return told


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

    def __bool__(self) -> bool:
        """Whether anything edits logits."""
        return bool(self._parts)

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

    def __init__(
        self, model: PackedModel, clock: StepClock, scoring: Scoring, local: LocalDrafters, features: FeatureStreams
    ):
        self._model = model
        self._clock = clock
        self._scoring = scoring
        self._local = local
        self._features = features

    def compute(self, jobs: list[VerificationJob], scored: int) -> ComputedStep:
        """Runs one forward pass and draws the target's own token after each row that asks for one.

        scored: number of rows of texts to score, from `Scoring.rows`.
        """
        model = self._model
        self._clock.enter("layout")
        builder = BatchBuilder()
        rows = []
        for job in jobs:
            first = len(builder.tokens)
            job.lay_out(builder, model.pool)
            rows.append((job.sequence, range(first, len(builder.tokens))))
        parts = self._scoring.lay_out(builder, scored)
        prompts = PromptLogProbs(jobs, builder)  # after all others that ask for logits
        batch = builder.build(model.group_size, model.device)
        sequences = [job.sequence for job in jobs]
        batch.taps = [*self._local.taps(sequences), *self._features.taps(rows)]
        editing = EditedLogits(jobs)
        editing.prepare()
        drawing = StepDrawing(jobs, model, edited=bool(editing))
        self._clock.enter("forward")
        states: torch.Tensor | None = None
        wants_states = any(
            job.sequence.state_readers and job.sampled_positions and self._local.wants_states(job.sequence)
            for job in jobs
        )
        wants_states = wants_states or any(part.wants_states for part in parts)
        if drawing.in_pass:
            logits, found, _ = drawing.forward(batch)
            states = found if wants_states else None
        elif wants_states:
            logits, states = model.forward_with_states(batch)
        else:
            logits = model.forward(batch)
        self._local.tapped(batch)
        self._features.tapped(batch)
        self._clock.enter("sample")
        own = logits if len(drawing) == logits.shape[0] else logits[: len(drawing)]
        edited = editing.apply(own)
        drawn = drawing.read(edited)
        scores = []
        if parts:
            scores = self._scoring.settle(
                parts, logits[len(drawing) :], None if states is None else states[len(drawing) :]
            )
        told = prompts.settle(logits) if prompts else {}
        return ComputedStep(AskedRows(*drawn, edited, logits, states), scores, told, len(builder), builder.seen)
