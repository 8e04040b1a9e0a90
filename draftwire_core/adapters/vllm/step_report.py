"""The tokens that a step of runner V2 sampled, and its features, on their way from the device to the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from draftwire_core.adapters.common.step_features import FeatureRows
from draftwire_core.engine.engine.feature_streams import FeatureKind


class RequestReport(NamedTuple):
    """One request's part of a step."""

    sampled: int
    """Number of tokens sampled; 0 while a prompt is computed."""
    length: int
    """Number of tokens of prompt and output."""
    first_row: int
    rows: int
    """Number of rows whose tokens are committed. The rejected draft tokens' rows follow them."""
    first_position: int
    """Position of the first row's token."""
    tail: list[int]
    """The last tokens; those beyond `length` are repetitions of the first one."""


class StepReport:
    """The lengths, the last tokens and the features of a step's requests, copied to the host.

    Under runner V2 the host launches a step's kernels, sampling included, and goes on: `propose` is called before the
    device has computed what was sampled. The tokens are in tensors there, and a drafter on another host needs them as
    numbers. So one wait for the device cannot be saved. Everything that the host has to know is gathered by the device
    into one small tensor, whose copy to pinned memory is launched behind the step; the wait is for an event after that
    copy, and that of the features, alone. Neither the device nor other streams are synchronised.

    A step's rows are those of its requests, one request after another (`query_start_loc`). A request's rows are
    those of consecutive positions, the last one at `seq_lens` - 1: a piece of its prompt, or the last sampled token and
    the draft tokens after it. Of those the last `num_rejected` are rejected. Which they are the host does not know when
    it launches the copies, so the features of all rows are copied, and `features` leaves the rejected ones out.
    """

    def __init__(
        self,
        states: Any,
        batch: Any,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        width: int,
        features: Mapping[FeatureKind, torch.Tensor],
    ):
        """Launches the copies. states: the runner's RequestState. batch: its InputBatch. num_sampled, num_rejected: int
        [requests]. width: number of last tokens to copy of each request. features: of all rows, [rows, width] each."""
        indices, count = batch.idx_mapping, batch.num_reqs
        lengths = states.total_len.gpu[indices]
        places = lengths[:, None] - width + torch.arange(width, dtype=lengths.dtype, device=lengths.device)
        tokens = states.all_token_ids.gpu[indices[:, None], places.clamp_(min=0)]
        starts, ends = batch.query_start_loc[:count], batch.query_start_loc[1 : count + 1]
        firsts = batch.seq_lens[:count] - (ends - starts)
        columns = [num_sampled, lengths, starts, ends - starts - num_rejected, firsts]
        report = torch.cat([*(each[:, None].to(tokens.dtype) for each in columns), tokens], dim=1)
        # A copy that does not block goes to pinned memory, which torch does not reuse before it is done.
        self._report = report.to("cpu", non_blocking=True)
        self._features = {kind: each.to("cpu", non_blocking=True) for kind, each in features.items()}
        self._copied: torch.cuda.Event | None = None
        if report.device.type != "cpu":
            # As vLLM's own, an event that blocks: the thread sleeps instead of spinning, and this process reads the
            # drafters' messages meanwhile. (On other GPUs vLLM puts their events in the place of CUDA's.)
            self._copied = torch.cuda.Event(blocking=True)
            self._copied.record()

    def read(self) -> list[RequestReport]:
        """Waits for the copies. Returns a report for each request."""
        if self._copied is not None:
            self._copied.synchronize()
        return [
            RequestReport(sampled, length, first, rows, position, tail)
            for sampled, length, first, rows, position, *tail in self._report.tolist()
        ]

    @property
    def has_features(self) -> bool:
        """Whether there are any features."""
        return bool(self._features)

    def features(self, request: RequestReport) -> FeatureRows:
        """Returns the features of a request's committed tokens. To be called after `read`."""
        rows = slice(request.first_row, request.first_row + request.rows)
        return FeatureRows(request.first_position, {kind: each[rows] for kind, each in self._features.items()})
