"""The coupled sampler in compiled code, for CPUs (`kernels/csrc/sampling/sampler.c`).

Without the compiled library, and on GPUs, `coupled_sampler` computes the same with about a hundred small torch calls.
"""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from draftwire_core.engine.kernels.library import BF16, library, loaded
from draftwire_core.engine.kernels.structs import Filters, Sample
from draftwire_core.engine.sampling.sampling_batch import (
    FLOAT32_MAX,
    SamplingBatch,
    check_positions,
    log_min_p_of,
)
from draftwire_core.engine.sampling.sampling_params import SamplingParams


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


class Ranking:
    """The best tokens of rows, each with its own request and absolute position, without a tensor.

    It finds what `best_tokens` finds for a `SamplingBatch` of the same rows. For a few rows most of that one's time is
    spent in making and reading small tensors, since a step of the model has just driven torch's code from the caches.
    """

    def __init__(self, params: Sequence[SamplingParams], positions: Sequence[int]):
        """Raises FieldError, as `SamplingBatch.build` does. The caller has validated the parameters."""
        check_positions(positions)
        greedy = [each.greedy for each in params]
        self._seeds = array("Q", [each.seed for each in params])
        self._positions = array("q", positions)
        self._temperatures = array(
            "f",
            [1.0 if cold else min(each.temperature, FLOAT32_MAX) for each, cold in zip(params, greedy, strict=True)],
        )
        self._greedy = array("B", greedy)
        found = [_NO_FILTERS if cold else _filters_of(each) for each, cold in zip(params, greedy, strict=True)]
        filtered = any(each is not _NO_FILTERS for each in found)
        self._filters = _filters_of_rows(len(found))(*(Filters(*each) for each in found)) if filtered else None

    def __len__(self) -> int:
        return len(self._positions)

    def tokens(self, logits: Tensor) -> list[int]:
        """Draws the token of each row; -1 in rows that `best_tokens` describes. logits [R, V], supported by `fits`.
        Raises MemoryError."""
        return self._find(logits, 1, None).tolist()

    def candidates(self, logits: Tensor, k: int) -> tuple[list[list[int]], list[list[float]]]:
        """The k best tokens of each row and their log-probabilities, as of `best_tokens`. logits [R, V], supported by
        `fits`. Raises MemoryError."""
        log_probs = array("f", bytes(_FLOAT * k * len(self)))
        tokens = self._find(logits, k, log_probs)
        places = range(0, len(tokens), k)
        return [tokens[at : at + k].tolist() for at in places], [log_probs[at : at + k].tolist() for at in places]

    def _find(self, logits: Tensor, k: int, log_probs: array[float] | None) -> array[int]:
        rows, vocabulary = logits.shape
        if rows != len(self):
            raise ValueError(f"logits of shape {tuple(logits.shape)} for a batch of {len(self)} rows")
        tokens, scores = array("q", bytes(_INT64 * k * rows)), array("f", bytes(_FLOAT * k * rows))
        call = Sample(
            logits.data_ptr(), _address(self._temperatures), _address(self._seeds), _address(self._positions),
            _address(self._greedy), None if self._filters is None else ctypes.addressof(self._filters),
            _address(tokens), _address(scores), None if log_probs is None else _address(log_probs),
            rows, vocabulary, logits.stride(0), k, BF16[logits.dtype],
        )  # fmt: skip
        if loaded().draftwire_sample(ctypes.addressof(call)):
            raise MemoryError(f"sampling from a vocabulary of {vocabulary}")
        return tokens


def _address(numbers: array[int] | array[float]) -> int:
    return numbers.buffer_info()[0]


_INT64, _FLOAT = 8, 4
"""Bytes of a number."""
_NO_FILTERS = (0, 1.0, 1.0, -math.inf)


@cache
def _filters_of_rows(rows: int) -> type[ctypes.Array[Filters]]:
    """The type of their filters, kept, since making it takes longer than filling it."""
    return Filters * rows


def _filters_of(params: SamplingParams) -> tuple[int, float, float, float]:
    if params.top_k <= 0 and params.top_p >= 1 and params.typical_p >= 1 and params.min_p <= 0:
        return _NO_FILTERS
    log_min_p = log_min_p_of([params.min_p]).item() if params.min_p > 0 else -math.inf
    return max(0, params.top_k), params.top_p, params.typical_p, log_min_p
