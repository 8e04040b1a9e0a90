"""Forward passes in fixed sizes, on GPUs as CUDA graphs, which launch a step's kernels in one call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from speculative_engine.device_copy import HostCopy
from speculative_engine.model.cuda.bucketed_batch import BucketedBatch, key_count
from speculative_engine.model.cuda.graph_capture import GraphCapture, Rows
from speculative_engine.model.cuda.host_reads import HostReadError, NoHostReads
from speculative_engine.model.cuda.step_buckets import Bucket, StepBuckets
from speculative_engine.model.packed_batch import PackedBatch
from speculative_engine.sampling.step_draws import StepDraws

RunModel = Callable[[BucketedBatch, Tensor | None], Rows]
"""Runs the model over a batch and returns the given rows, or all."""


class BucketedSteps:
    """Runs a step in the tensors of the smallest bucket that holds it; in new tensors if none does."""

    def __init__(self, run: RunModel, buckets: StepBuckets, device: torch.device):
        self.buckets = buckets
        self.unavailable: str | None = None
        """Reason why the model could not be captured; None if it was, or was not tried."""
        self.replays = True
        """Whether captured steps are replayed; if not, all kernels are launched one by one, for comparisons."""
        self._run = run
        self._device = device
        self._batches: dict[Bucket, BucketedBatch] = {}
        self._replays: dict[Bucket, Callable[[], Rows]] = {}

    @property
    def captured(self) -> int:
        """Number of buckets whose steps were captured."""
        return len(self._replays)

    def capture(self) -> None:
        """Captures a graph for each bucket, in one memory pool, since only one runs at a time.

        A model that waits for the device during a pass cannot be captured; then only `unavailable` is set. On CPUs,
        which have no graphs, each step calls the function that would have been captured.
        """
        buckets = list(self.buckets)
        smallest = self._batch(buckets[-1])  # before, since its first numbers are copied to the device
        try:
            with NoHostReads():
                self._run(smallest, None)
        except HostReadError as error:
            self.unavailable = str(error)
            return
        cuda = self._device.type == "cuda"
        stream = torch.cuda.current_stream(self._device) if cuda else None
        try:
            capture = GraphCapture(self._device) if cuda else None
            for bucket in buckets:
                run = partial(self._run, self._batch(bucket), None)
                self._replays[bucket] = run if capture is None else capture.captured(run)
        except torch.OutOfMemoryError:
            self.drop()
            raise
        except RuntimeError as error:
            self.drop()
            cause: BaseException = error
            while cause.__context__ is not None:  # ending a failed capture raises another error
                cause = cause.__context__
            self.unavailable = str(cause).strip().partition("\n")[0] or type(cause).__name__
        finally:
            if stream is not None and not self._replays:
                torch.cuda.set_stream(stream)  # a capture that fails leaves the thread on the stream of the capture

    def drop(self) -> None:
        """Discards all graphs."""
        self._replays.clear()

    def forward(self, batch: PackedBatch) -> Rows:
        """Runs one forward pass: writes the rows' keys and values and returns the wanted rows."""
        return self._forward(batch, None)[0]

    def forward_and_draw(self, batch: PackedBatch, draws: StepDraws) -> tuple[Rows, HostCopy]:
        """Runs `forward` and draws tokens in the same graph, if `run` draws; they are then on their way to the host."""
        rows, drawn = self._forward(batch, draws)
        assert drawn is not None, "only for passes that draw"
        return rows, drawn

    def _forward(self, batch: PackedBatch, draws: StepDraws | None) -> tuple[Rows, HostCopy | None]:
        keys = key_count(batch)
        bucket = self.buckets.bucket(len(batch), keys)
        if bucket is None:
            large = BucketedBatch(StepBuckets.rounded(len(batch), keys), self._device)
            large.fill(batch, draws, whole=False)
            rows = self._run(large, large.wanted)
            return rows, _to_host(rows, draws)
        fixed = self._batch(bucket)
        fixed.fill(batch, draws)
        replay = self._replays.get(bucket) if self.replays else None
        rows = self._run(fixed, None) if replay is None else replay()
        drawn = _to_host(rows, draws)  # first, since the host waits for this alone
        # Copies, since the next replay overwrites this memory.
        return Rows(*(each.index_select(0, fixed.wanted) for each in rows[:2])), drawn

    def _batch(self, bucket: Bucket) -> BucketedBatch:
        batch = self._batches.get(bucket)
        if batch is None:
            batch = self._batches[bucket] = BucketedBatch(bucket, self._device)
        return batch


def _to_host(rows: Rows, draws: StepDraws | None) -> HostCopy | None:
    return None if draws is None or rows.drawn is None else HostCopy(rows.drawn)
