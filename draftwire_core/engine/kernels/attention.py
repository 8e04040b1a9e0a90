"""Attention over KV slots in compiled code, for CPUs; reads keys and values in place (`csrc/attention/attention.c`).

Without the compiled library, and for tensors that it does not support, `packed_attention` computes the same with torch,
a few times slower.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from draftwire_core.engine.kernels.kv_rows import KV_TYPES, elements
from draftwire_core.engine.kernels.library import LANES, library, loaded
from draftwire_core.engine.kernels.structs import Attention

_QUERIES = 16
"""Most queries per tile in the compiled code."""
_MOST_SCORES = 1 << 28
"""Floats of all threads' scores, 1 GiB, beyond which tiles have fewer queries: with 64 threads, 16 queries of a context
of 131072 tokens took gigabytes, which nobody has set aside."""
MOST_DIM = 512
"""Largest head dimension that the compiled code supports."""


@dataclass(frozen=True, slots=True)
class SlotLanes:
    """The slots that each query of a batch sees. All arrays are int64."""

    seen: np.ndarray
    """The slots of all lanes, concatenated; by position within a lane."""
    lanes: np.ndarray
    """[lanes, 3]: start of the lane's slots in `seen`, its first query, the query after its last."""
    rows: np.ndarray
    """[queries]: the packed row of each query."""
    counts: np.ndarray
    """[queries]: the number of slots that each query sees, the first ones of its lane."""
    longest: int
    """The largest number of slots of a lane."""
    widest: int
    """The largest number of queries of a lane."""


class ScratchSize(NamedTuple):
    """Size of the working memory of a call."""

    longest: int
    """Positions that a query's scores have room for, a multiple of LANES."""
    scores: int
    """Floats per thread."""

    @classmethod
    def of(cls, lanes: SlotLanes, shared: int, threads: int) -> ScratchSize:
        """The size for a batch. shared: query heads per key-value head, 0 without attention."""
        longest = -(-(lanes.longest + LANES) // LANES) * LANES
        of_query = shared * longest
        queries = max(1, min(lanes.widest, _QUERIES, _MOST_SCORES // max(1, threads * of_query)))
        return cls(longest, queries * of_query)


def fits(keys: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether the compiled code supports keys and values of this device, dtype and shape."""
    return (
        keys.device.type == "cpu"
        and keys.dtype in KV_TYPES
        and elements(keys) % LANES == 0
        and elements(keys) <= MOST_DIM
        and elements(values) % LANES == 0
        and library() is not None
    )


def attend(
    lanes: SlotLanes,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    chunk: int | None = None,
) -> torch.Tensor:
    """Computes the attention of each row to the slots that it sees; float32 [rows, heads, value_dim].

    query: scaled, float32 [heads, rows, key_dim], contiguous. keys and values: [kv_heads, slots, dim], contiguous; or
    rows of `kv_rows`, [kv_heads, slots, width]. window: number of last slots that a query sees; None for all. chunk: a
    query sees only slots of its own chunk of so many positions; None for all.
    """
    heads, row_count, key_dim = query.shape
    kv_heads, slots, _ = values.shape
    value_dim = elements(values)
    out = torch.empty(row_count, heads, value_dim, dtype=torch.float32)
    shared = heads // kv_heads
    threads = torch.get_num_threads()
    size = ScratchSize.of(lanes, shared, threads)
    sink_scores = None if sinks is None else sinks.float().contiguous()
    scratch = torch.empty(threads, size.scores, dtype=torch.float32)
    call = Attention(
        query.data_ptr(), keys.data_ptr(), values.data_ptr(), out.data_ptr(), scratch.data_ptr(),
        None if sink_scores is None else sink_scores.data_ptr(),
        lanes.seen.ctypes.data, lanes.lanes.ctypes.data, lanes.rows.ctypes.data, lanes.counts.ctypes.data,
        row_count, kv_heads, shared, slots, key_dim, value_dim,
        size.longest, window or 0, chunk or 0, len(lanes.lanes), size.scores,
        softcap or 0.0, KV_TYPES[keys.dtype],
    )  # fmt: skip
    loaded().draftwire_attention(ctypes.addressof(call), threads)
    return out
