"""Forward passes in tensors of a bucket's size, for attention over keys gathered from the cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from speculative_engine.model.cuda.bucketed_batch import BucketedBatch, key_count
from speculative_engine.model.cuda.captured_steps import CapturedSteps
from speculative_engine.model.cuda.graph_capture import Rows
from speculative_engine.model.cuda.step_buckets import Bucket, StepBuckets
from speculative_engine.model.packed_batch import PackedBatch
from speculative_engine.sampling.step_draws import StepDraws

RunModel = Callable[[BucketedBatch, Tensor | None], Rows]
"""Runs the model over a batch and returns the given rows, or all."""


class BucketedSteps(CapturedSteps[Bucket, BucketedBatch]):
    """Runs a step in the tensors of the smallest bucket that holds it; in new tensors if none does."""

    def __init__(self, run: RunModel, buckets: StepBuckets, device: torch.device):
        super().__init__(run, list(buckets), partial(BucketedBatch, device=device), device)
        self.buckets = buckets

    def _filled(self, batch: PackedBatch, draws: StepDraws | None) -> tuple[BucketedBatch, Bucket | None]:
        keys = key_count(batch)
        bucket = self.buckets.bucket(len(batch), keys)
        rounded = StepBuckets.rounded(len(batch), keys)
        fixed = BucketedBatch(rounded, self._device) if bucket is None else self._batch(bucket)
        fixed.fill(batch, draws, whole=bucket is not None)
        return fixed, bucket
