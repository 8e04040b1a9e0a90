"""Forward passes in steps of fixed sizes, and on GPUs by CUDA graphs, which start a step's kernels in one call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from speculative_engine.model.cuda.bucketed_batch import BucketedBatch, key_count
from speculative_engine.model.cuda.step_buckets import Bucket, StepBuckets
from speculative_engine.model.packed_batch import PackedBatch

Rows = tuple[Tensor, Tensor]
"""Logits [rows, vocabulary], and the hidden states they were made from [rows, hidden]."""
RunModel = Callable[[BucketedBatch, Tensor | None], Rows]
"""Runs the model over a batch: all rows' logits, or those of the rows given."""


class BucketedSteps:
    """Runs steps that fit into a bucket in the bucket's own tensors, others in tensors made for them."""

    def __init__(self, run: RunModel, buckets: StepBuckets, device: torch.device):
        self.buckets = buckets
        self.unavailable: str | None = None
        """Why there are no graphs, where they were asked for."""
        self._run = run
        self._device = device
        self._batches: dict[Bucket, BucketedBatch] = {}
        self._replays: dict[Bucket, Callable[[], Rows]] = {}

    @property
    def captured(self) -> int:
        """Number of buckets whose steps were captured."""
        return len(self._replays)

    def capture(self) -> None:
        """Capture a graph for each bucket, all in one pool of memory, as one runs at a time.

        Does nothing but set `unavailable` for a model that cannot be captured: one that asks the device for something
        in the middle of a pass. Where there are no graphs, on CPUs, what would be captured is called at each step.
        """
        pool = torch.cuda.graph_pool_handle() if self._device.type == "cuda" else None
        try:
            for bucket in self.buckets:
                batch = self._batch(bucket)
                self._replays[bucket] = _captured(partial(self._run, batch, None), self._device, pool)
        except torch.OutOfMemoryError:
            self.drop()
            raise
        except RuntimeError as error:
            self.drop()
            cause: BaseException = error
            while cause.__context__ is not None:  # the end of a capture that failed is an error, too
                cause = cause.__context__
            self.unavailable = str(cause).strip().partition("\n")[0] or type(cause).__name__

    def drop(self) -> None:
        """Do without graphs from now on."""
        self._replays.clear()

    def forward(self, batch: PackedBatch) -> Rows:
        """One forward pass: writes the rows' keys and values, returns the wanted rows."""
        keys = key_count(batch)
        bucket = self.buckets.bucket(len(batch), keys)
        if bucket is None:
            large = BucketedBatch(StepBuckets.rounded(len(batch), keys), self._device)
            return self._run(large, self._wanted(batch, large))
        fixed = self._batch(bucket)
        wanted = self._wanted(batch, fixed)
        replay = self._replays.get(bucket)
        logits, states = self._run(fixed, None) if replay is None else replay()
        # Copies: the next replay writes to the same memory.
        return logits.index_select(0, wanted), states.index_select(0, wanted)

    def _batch(self, bucket: Bucket) -> BucketedBatch:
        batch = self._batches.get(bucket)
        if batch is None:
            batch = self._batches[bucket] = BucketedBatch(bucket, self._device)
        return batch

    def _wanted(self, batch: PackedBatch, fixed: BucketedBatch) -> Tensor:
        place = fixed.fill(batch)
        return torch.from_numpy(place[batch.wanted]).to(self._device)


def _captured(run: Callable[[], Rows], device: torch.device, pool: tuple[int, int] | None) -> Callable[[], Rows]:
    """What does again, on the same tensors, what `run` does."""
    if device.type != "cuda":
        return run
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # libraries choose their kernels and take their memory at the first calls
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Another thread may be drafting with another model: its calls are no part of this.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            rows = run()

    def replay() -> Rows:
        graph.replay()
        return rows

    return replay
