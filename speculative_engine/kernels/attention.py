"""Attention over KV slots in compiled code, for CPUs: reads keys and values where they lie. See attention.c.

Without the compiled library, and for what it does not compute, `packed_attention` does the same with torch, a few times
slower.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from speculative_engine.kernels.library import BF16, LANES, library, loaded

_QUERIES = 16
MOST_DIM = 512
"""Longest head: the compiled code has room for no longer one."""


@dataclass(frozen=True, slots=True)
class SlotLanes:
    """Which slots each query of a batch sees. All arrays are int64."""

    seen: np.ndarray
    """The lanes' slots by position, one lane after the other."""
    lanes: np.ndarray
    """[lanes, 3]: where a lane's slots begin, its first query, the query after its last."""
    rows: np.ndarray
    """[queries] packed row of each query."""
    counts: np.ndarray
    """[queries] how many of its lane's slots each query sees: the first ones."""
    longest: int
    """The greatest of the counts."""
    widest: int
    """Most queries of a lane."""


class ScratchSize(NamedTuple):
    """What working memory a call needs."""

    longest: int
    """Positions that there is room for in a query's scores: a multiple of LANES."""
    scores: int
    """Floats that each thread needs."""

    @classmethod
    def of(cls, lanes: SlotLanes, shared: int) -> ScratchSize:
        """shared: query heads per key-value head."""
        longest = -(-(lanes.longest + LANES) // LANES) * LANES
        return cls(longest, min(lanes.widest, _QUERIES) * shared * longest)


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "keys", "values", "out", "scratch", "sinks")),
        *((name, ctypes.c_void_p) for name in ("seen", "lanes", "rows", "counts")),
        *((name, ctypes.c_int64) for name in ("row_count", "kv_heads", "shared", "slots", "key_dim", "value_dim")),
        *((name, ctypes.c_int64) for name in ("longest", "window", "lane_count", "scratch_size")),
        ("softcap", ctypes.c_float),
        ("bf16", ctypes.c_int32),
    )


def fits(keys: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether the compiled code computes with keys and values like these."""
    return (
        keys.device.type == "cpu"
        and keys.dtype in BF16
        and keys.shape[-1] % LANES == 0
        and keys.shape[-1] <= MOST_DIM
        and values.shape[-1] % LANES == 0
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
) -> torch.Tensor:
    """Let each row attend to what it sees; float32 [rows, heads, value_dim].

    query: scaled, float32 [heads, rows, key_dim], contiguous. keys and values: [kv_heads, slots, dim], contiguous.
    """
    heads, row_count, key_dim = query.shape
    kv_heads, slots, value_dim = values.shape
    out = torch.empty(row_count, heads, value_dim, dtype=torch.float32)
    shared = heads // kv_heads
    room = ScratchSize.of(lanes, shared)
    sink_scores = None if sinks is None else sinks.float().contiguous()
    threads = torch.get_num_threads()
    scratch = torch.empty(threads, room.scores, dtype=torch.float32)
    call = _Call(
        query.data_ptr(), keys.data_ptr(), values.data_ptr(), out.data_ptr(), scratch.data_ptr(),
        None if sink_scores is None else sink_scores.data_ptr(),
        lanes.seen.ctypes.data, lanes.lanes.ctypes.data, lanes.rows.ctypes.data, lanes.counts.ctypes.data,
        row_count, kv_heads, shared, slots, key_dim, value_dim,
        room.longest, window or 0, len(lanes.lanes), room.scores,
        softcap or 0.0, BF16[keys.dtype],
    )  # fmt: skip
    loaded().draftwire_attention(ctypes.addressof(call), threads)
    return out
