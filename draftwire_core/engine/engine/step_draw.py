"""The target's own tokens of a step: drawn in the pass where the model can, else from its logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from draftwire_core.engine.acceptance.coupled import walk_on_device
from draftwire_core.engine.device.device_copy import HostCopy, to_device
from draftwire_core.engine.engine.verification_job import VerificationJob
from draftwire_core.engine.kernels.library import library
from draftwire_core.engine.model.packed_batch import PackedBatch
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.rows import Rows
from draftwire_core.engine.sampling.compiled_sampler import Ranking, fits
from draftwire_core.engine.sampling.coupled_sampler import sample
from draftwire_core.engine.sampling.device_sampler import draw
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.sampling.step_draws import StepDraws


class StepDraw(NamedTuple):
    """The drawn tokens, by row."""

    tokens: list[int]
    """The target's token after each row; -1 where the logits are bad."""
    on_path: list[bool] | None
    """Whether each row is on the path of the drawn tokens; None if the host has to walk the path."""


class StepDrawing:
    """The draws of one step, whose rows of logits are the first that the step wants.

    It has three ways, with the same tokens: the kernels of `KernelSampler`, in the pass or after it; on a GPU without
    them torch's operations, which the device does without waiting; on CPUs the reference sampler.
    """

    def __init__(self, jobs: Sequence[VerificationJob], model: PackedModel, *, edited: bool):
        """Sends what drawing needs to the device, or leaves it to the pass: after the pass the device would idle.

        edited: whether requests edit the logits between pass and drawing.
        """
        params: list[SamplingParams] = []
        positions: list[int] = []
        for job in jobs:
            params.extend([job.sequence.sampling] * len(job.sampled_positions))
            positions.extend(job.sampled_positions)
        self._model, self._params, self._positions = model, params, positions
        self._copy: HostCopy | None = None
        self._draws: StepDraws | None = None
        self._numbers: Tensor | None = None
        self._tree: Tensor | None = None
        self.in_pass = bool(params) and not edited and model.draws_in_pass
        """Whether `forward` must run the pass."""
        self._on_host = model.sampler is None and model.device.type == "cpu"
        self._ranking: Ranking | None = None
        if self._on_host:
            self._ranking = Ranking(params, positions) if library() is not None else None
            return
        if model.sampler is None:
            self._sampling = SamplingBatch.build(params, positions, model.device)
            if params:
                self._tree = to_device(torch.tensor(tree_of(jobs), dtype=torch.int64), model.device)
            return
        self._sampling = SamplingBatch.build(params, positions)
        self._draws = StepDraws(self._sampling, *tree_of(jobs))
        if params and not self.in_pass:
            self._numbers = to_device(self._draws.numbers(), model.device)

    def __len__(self) -> int:
        return len(self._positions)

    def forward(self, batch: PackedBatch) -> Rows:
        """Runs the pass, which draws the tokens."""
        assert self._draws is not None
        rows: Rows
        rows, self._copy = self._model.forward_and_draw(batch, self._draws)
        return rows

    def read(self, logits: Tensor) -> StepDraw:
        """Returns the tokens, which the pass has drawn or which are drawn now. logits [draws, V]."""
        if not len(self):
            return StepDraw([], None)
        if self._ranking is not None and fits(logits):
            return StepDraw(self._ranking.tokens(logits), None)
        if self._on_host:
            return draw_step(logits, SamplingBatch.build(self._params, self._positions))
        if self._tree is not None:
            return draw_step_on_device(logits, self._sampling, self._tree)
        sampler = self._model.sampler
        assert sampler is not None
        copy = self._copy
        if copy is None:
            assert self._numbers is not None
            copy = HostCopy(sampler.draw(logits, self._numbers))
        again = _draw_again(logits, self._sampling, list(self._sampling.typical_p))
        tokens, path = copy.get()[:, : len(self)]
        return _joined(tokens, path, again)


def tree_of(jobs: Sequence[VerificationJob]) -> tuple[list[int], list[int]]:
    """The own token of each drawn row, in job order, and the row that each follows; roots have token -1, and follow
    themselves."""
    tokens: list[int] = []
    parents: list[int] = []
    for job in jobs:
        first, rows = len(tokens), job.tree_rows()
        probes = len(job.sampled_positions) - len(rows)
        if probes >= 0:  # a job without these draws nothing in this step
            tokens += [*rows.tokens, *[-1] * probes]
            parents += [first + max(0, parent) for parent in (*rows.parents, *[0] * probes)]
    return tokens, parents


def draw_step(logits: Tensor, batch: SamplingBatch) -> StepDraw:
    """Draws tokens with the reference sampler, on whichever device the logits are. logits [rows, V]."""
    return StepDraw(sample(logits, batch).token_ids.tolist(), None)


def draw_step_on_device(logits: Tensor, batch: SamplingBatch, tree: Tensor) -> StepDraw:
    """Draws as `draw_step` does, but synchronizes with the device only once, at the end.

    Rows that filter tokens, and the few that the device sampler leaves unsettled, use the sampler of `draw_step`.
    logits [rows, V]; tree: int64 [2, rows] on their device, see `tree_of`.
    """
    found = draw(logits, batch)
    path = walk_on_device(found.token_ids, *tree)
    drawn, kept, settled = torch.stack([found.token_ids, path, found.settled]).cpu()
    again = {*batch.filtered_rows, *(settled == 0).nonzero()[:, 0].tolist()}
    return _joined(drawn, kept, _draw_again(logits, batch, sorted(again)))


def _draw_again(logits: Tensor, batch: SamplingBatch, rows: list[int]) -> dict[int, int]:
    """The tokens of some rows by the reference sampler, which may wait for the device."""
    if not rows:
        return {}
    which = to_device(torch.tensor(rows, dtype=torch.int64), logits.device)
    drawn = sample(logits.index_select(0, which), batch.select(rows).to(logits.device)).token_ids.tolist()
    return dict(zip(rows, drawn, strict=True))


def _joined(tokens: Tensor, path: Tensor, again: dict[int, int]) -> StepDraw:
    """A step's draw, of which some tokens were drawn again, so that the path is no longer known."""
    drawn = tokens.tolist()
    for row, token in again.items():
        drawn[row] = token
    return StepDraw(drawn, None if again else path.bool().tolist())
