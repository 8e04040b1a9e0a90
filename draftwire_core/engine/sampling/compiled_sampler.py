"""The coupled sampler in compiled code, for CPUs (`kernels/csrc/sampling/sampler.c`).

Without the compiled library, and on GPUs, `coupled_sampler` computes the same with about a hundred small torch calls.
"""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from draftwire_core.engine.kernels.library import BF16, library, loaded
from draftwire_core.engine.kernels.structs import Filters, Sample
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch


def fits(logits: Tensor) -> bool:
    """Whether the compiled code supports these logits [R, V]."""
    return (
        logits.device.type == "cpu"
        and logits.dtype in BF16
        and logits.shape[1] > 0
        and (logits.stride(1) == 1 or logits.shape[1] == 1)
        and library() is not None
    )


def best_tokens(
    logits: Tensor, batch: SamplingBatch, k: int, *, log_probs: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The k best tokens of each row, best first, the lowest id first among equals. Raises MemoryError.

    logits [R, V], supported by `fits`. Returns ids [R, k] int64, scores z / T + g [R, k] float32, and, with
    `log_probs`, log softmax(z / T) [R, k] float32. Entries are -1, -inf and -inf where a row has fewer tokens, and
    throughout a row that holds NaN or +inf, or nothing finite.
    """
    rows, vocabulary = logits.shape
    tokens = torch.empty((rows, k), dtype=torch.int64)
    scores = torch.empty((rows, k), dtype=torch.float32)
    found = torch.empty((rows, k), dtype=torch.float32) if log_probs else None
    filters = (Filters * rows)(*_filters(batch)) if batch.filters else None
    call = Sample(
        logits.data_ptr(), batch.temperatures.data_ptr(), batch.seeds.data_ptr(), batch.positions.data_ptr(),
        batch.greedy.data_ptr(), None if filters is None else ctypes.addressof(filters),
        tokens.data_ptr(), scores.data_ptr(), None if found is None else found.data_ptr(),
        rows, vocabulary, logits.stride(0), k, BF16[logits.dtype],
    )  # fmt: skip
    if loaded().draftwire_sample(ctypes.addressof(call)):
        raise MemoryError(f"sampling from a vocabulary of {vocabulary}")
    return tokens, scores, found


def _filters(batch: SamplingBatch) -> list[tuple[int, float, float, float]]:
    log_min_p = dict(zip(batch.min_p_rows, batch.log_min_p.tolist(), strict=True))
    return [
        (
            batch.top_k.get(row, 0),
            batch.top_p.get(row, 1.0),
            batch.typical_p.get(row, 1.0),
            log_min_p.get(row, -math.inf),
        )
        for row in range(len(batch))
    ]
