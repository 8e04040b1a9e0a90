"""Adds up the parts of ranks, in the order of ranks, with bias and residual in the same launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwire_core.engine.model.cuda.kernels.numbers import narrowed, widened

_BLOCK = 1024


@triton.jit(do_not_specialize=["count"])
def rank_sum_kernel(
    parts, bias, out, count, width, RANKS: tl.constexpr, BIASED: tl.constexpr, ADDED: tl.constexpr, BLOCK: tl.constexpr
):
    """One program a block of elements; see `add_ranks`."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = at < count
    summed = widened(tl.load(parts + at, mask=real, other=0.0))
    for rank in range(1, RANKS):
        summed += widened(tl.load(parts + rank * count.to(tl.int64) + at, mask=real, other=0.0))
    if BIASED:
        summed += widened(tl.load(bias + at % width, mask=real, other=0.0))
    if ADDED:
        summed += widened(tl.load(out + at, mask=real, other=0.0))
    tl.store(out + at, narrowed(summed, out.dtype.element_ty), mask=real)


def add_ranks(parts: Tensor, bias: Tensor | None, add_to: Tensor | None) -> Tensor:
    """The sum of parts [ranks, rows, width], and of a bias [width], in float32; in the dtype of the parts.

    add_to: rows [rows, width], of any dtype, to which it is added, in place.
    """
    ranks, rows, width = parts.shape
    out = torch.empty(rows, width, dtype=parts.dtype, device=parts.device) if add_to is None else add_to
    count = rows * width
    rank_sum_kernel[-(-count // _BLOCK),](
        parts,
        parts if bias is None else bias,
        out,
        count,
        width,
        RANKS=ranks,
        BIASED=bias is not None,
        ADDED=add_to is not None,
        BLOCK=_BLOCK,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return out
