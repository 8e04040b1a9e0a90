"""Attention over committed keys by torch's `varlen_attn`, the flash attention kernel for sequences of any lengths.

The keys are gathered first: the kernel reads keys in place, by block tables, only since torch 2.13 or with
FlashAttention 3 or 4 installed, and only in pages of a multiple of 256 keys, where a sequence's slots here lie in
blocks of 64.
"""

from __future__ import annotations

import inspect
from functools import cache

import torch
from torch import Tensor

from speculative_engine.model.attention.split_attention import Part

MOST_DIM = 256
"""Largest head dimension that the kernel supports."""
_HALF = (torch.bfloat16, torch.float16)
_LEAST_CAPABILITY = (8, 0)
"""NVIDIA's compute capability that the kernel needs: Ampere."""
_LEAST_SPLIT = 256
"""Keys of a split that are worth a block of threads of their own."""


@cache
def _options() -> dict[str, object] | None:
    """Options for this version of torch's kernel; None if the version lacks it or what we need of it."""
    try:
        from torch.nn.attention.varlen import AuxRequest, varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    if "scale" not in known or "return_aux" not in known:
        return None
    grouped: dict[str, object] = {"enable_gqa": True} if "enable_gqa" in known else {}
    splits: dict[str, object] = {"num_splits": 1} if "num_splits" in known else {}
    return {"return_aux": AuxRequest(lse=True), **grouped, **splits}


def fits(keys: Tensor, values: Tensor, window: int | None, softcap: float | None) -> bool:
    """Whether the kernel supports keys and values of this device, dtype and shape.

    Its windows are not used: they assume consecutive positions, which the rows of a tree do not have.
    """
    return (
        keys.device.type == "cuda"
        and torch.cuda.get_device_capability(keys.device) >= _LEAST_CAPABILITY
        and keys.dtype in _HALF
        and keys.shape[-1] == values.shape[-1]
        and keys.shape[-1] % 8 == 0
        and keys.shape[-1] <= MOST_DIM
        and window is None
        and softcap is None
        and _options() is not None
    )


def attend_ranges(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    first_rows: Tensor,
    first_keys: Tensor,
    empty: Tensor,
    scaling: float,
) -> Part:
    """Computes the attention of rows first_rows[i] to first_rows[i + 1] to keys first_keys[i] to first_keys[i + 1].

    query [heads, rows, dim]; keys and values, supported by `fits`: [kv_heads, n, dim]; first_rows and first_keys int32,
    ascending, of the same length; the last of first_rows is the number of rows. empty [rows] bool: rows without keys.
    """
    from torch.nn.attention.varlen import varlen_attn

    heads, rows, _ = query.shape
    splits = split_count(len(first_rows) - 1, len(keys), keys.shape[1], _processors(keys.device))
    out, weight = varlen_attn(
        query.transpose(0, 1).contiguous(),
        keys.transpose(0, 1),
        values.transpose(0, 1),
        first_rows,
        first_keys,
        rows,
        keys.shape[1],
        scale=scaling,
        **_options_of(splits),
    )
    if _by_head(keys.device, keys.dtype):
        weight = weight.t()
    # The kernel's results for rows without keys differ between versions.
    none = empty.unsqueeze(1)
    return Part(out.float().masked_fill(none.unsqueeze(2), 0.0), weight.masked_fill(none, -torch.inf))


def split_count(ranges: int, kv_heads: int, keys: int, processors: int) -> int:
    """Number of splits of the keys, so that about as many blocks of threads run as the GPU has processors.

    It depends on a step's sizes alone, so a captured step keeps it. The kernel's own choice by the longest range is not
    only another one for each step: with some releases it leaves values that are not numbers.
    """
    return max(1, min(processors // (ranges * kv_heads), keys // _LEAST_SPLIT))


def _options_of(splits: int) -> dict[str, object]:
    """Options of a call, with the number of splits if this version of torch's kernel takes it."""
    options = _options()
    assert options is not None, "callers check first whether the batch fits"
    return options | {"num_splits": splits} if "num_splits" in options else options


@cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # tests run a stand-in of the kernel
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def _by_head(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernel's log-sum-exps are [heads, rows]; tried out, as its documentation and code have disagreed."""
    from torch.nn.attention.varlen import varlen_attn

    rows, heads = 3, 2
    like = torch.zeros(rows, heads, 64, device=device, dtype=dtype)
    ends = rows * torch.arange(2, dtype=torch.int32, device=device)  # a copy from the host would wait for the device
    _, weight = varlen_attn(like, like, like, ends, ends, rows, rows, scale=1.0, **_options_of(1))
    return tuple(weight.shape) == (heads, rows)
