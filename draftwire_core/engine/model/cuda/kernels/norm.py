"""Root mean square norms, with the addition to the residual that is before or between them, and copies of what enters
them for taps."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwire_core.engine.model.cuda.kernels.numbers import narrowed, widened

_MOST_BLOCK = 8192
"""Elements that are added up at once where a row is read several times; blocks of them one after another."""
_OPTIONS: dict[str, Any] = {"num_warps": 8, "enable_fp_fusion": False}


@triton.jit
def scale_of(inputs, width, eps, BLOCK: tl.constexpr):
    """One over the root mean square of a row. inputs: where it begins."""
    squares = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, width, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        numbers = widened(tl.load(inputs + at, mask=at < width, other=0.0))
        squares += numbers * numbers
    return 1.0 / tl.sqrt(tl.sum(squares, 0) / width + eps)


@triton.jit
def keep_row(numbers, places, kept, layer, plane, row, at, width):
    """Stores what enters a layer, if a tap reads there: see `TappedRows`. row: where it begins in its plane."""
    place = tl.load(places + layer)
    if place >= 0:
        begin = kept + place.to(tl.int64) * plane + row
        tl.store(begin + at, narrowed(numbers, kept.dtype.element_ty), mask=at < width)


@triton.jit(do_not_specialize=["layer"])
def norm_kernel(
    inputs,
    weight,
    out,
    places,
    kept,
    layer,
    plane,
    width,
    eps,
    BLOCK: tl.constexpr,
    OFFSET: tl.constexpr,
    TAPPED: tl.constexpr,
):
    """One program a row, which is one block; see `rms_norm`."""
    row = tl.program_id(0).to(tl.int64) * width
    at = tl.arange(0, BLOCK)
    factors = widened(tl.load(weight + at, mask=at < width, other=0.0)) + OFFSET
    numbers = widened(tl.load(inputs + row + at, mask=at < width, other=0.0))
    scale = 1.0 / tl.sqrt(tl.sum(numbers * numbers, 0) / width + eps)
    tl.store(out + row + at, narrowed(numbers * scale * factors, out.dtype.element_ty), mask=at < width)
    if TAPPED:
        keep_row(numbers, places, kept, layer, plane, row, at, width)


@triton.jit(do_not_specialize=["layer"])
def keep_kernel(inputs, places, kept, layer, plane, width, BLOCK: tl.constexpr):
    """One program a row, which is one block; see `keep_rows`."""
    row = tl.program_id(0).to(tl.int64) * width
    at = tl.arange(0, BLOCK)
    numbers = widened(tl.load(inputs + row + at, mask=at < width, other=0.0))
    keep_row(numbers, places, kept, layer, plane, row, at, width)


@triton.jit
def added_norm_kernel(
    inputs, weight, residual, after, out, width, eps, BLOCK: tl.constexpr, OFFSET: tl.constexpr, NORMED: tl.constexpr
):
    """One program a row; see `add_norm`."""
    row = tl.program_id(0).to(tl.int64) * width
    scale = scale_of(inputs + row, width, eps, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, width, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        numbers = widened(tl.load(inputs + row + at, mask=at < width, other=0.0))
        factors = widened(tl.load(weight + at, mask=at < width, other=0.0)) + OFFSET
        before = widened(tl.load(residual + row + at, mask=at < width, other=0.0))
        added = narrowed(before + numbers * scale * factors, residual.dtype.element_ty)
        tl.store(residual + row + at, added, mask=at < width)
        squares += widened(added) * widened(added)
    if NORMED:
        tl.debug_barrier()  # threads read below what others have written
        again = 1.0 / tl.sqrt(tl.sum(squares, 0) / width + eps)
        for begin in range(0, width, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            numbers = widened(tl.load(residual + row + at, mask=at < width, other=0.0))
            factors = widened(tl.load(after + at, mask=at < width, other=0.0)) + OFFSET
            tl.store(out + row + at, narrowed(numbers * again * factors, out.dtype.element_ty), mask=at < width)


class Kept(NamedTuple):
    """The memory that keeps the inputs of some layers."""

    places: Tensor
    """Index of the plane that keeps a layer's inputs, by layer, int32 [layers + 1]; -1 for layers without."""
    planes: Tensor
    """[planes, rows, width]"""
    layer: int
    """The layer that rows enter."""


def rms_norm(inputs: Tensor, weight: Tensor, eps: float, offset: float, kept: Kept | None = None) -> Tensor:
    """The norm of rows [rows, width], in the dtype of the weight [width], to which `offset` is added. kept: the memory
    that keeps the rows themselves."""
    rows, width = inputs.shape
    out = torch.empty(rows, width, dtype=weight.dtype, device=inputs.device)
    norm_kernel[rows,](
        inputs,
        weight,
        out,
        out if kept is None else kept.places,
        out if kept is None else kept.planes,
        0 if kept is None else kept.layer,
        0 if kept is None else kept.planes.stride(0),
        width,
        eps,
        BLOCK=triton.next_power_of_2(width),
        OFFSET=offset,
        TAPPED=kept is not None,
        **_OPTIONS,
    )
    return out


def keep_rows(inputs: Tensor, kept: Kept) -> None:
    """Keeps rows [rows, width]."""
    rows, width = inputs.shape
    block = triton.next_power_of_2(width)
    plane = kept.planes.stride(0)
    keep_kernel[rows,](inputs, kept.places, kept.planes, kept.layer, plane, width, BLOCK=block, num_warps=8)


def add_norm(
    inputs: Tensor, weight: Tensor, residual: Tensor, eps: float, offset: float, after: Tensor | None = None
) -> Tensor | None:
    """Adds the norm of rows to `residual` [rows, width], in place; returns the norm of that with the weight `after`, in
    its dtype."""
    rows, width = inputs.shape
    out = None if after is None else torch.empty(rows, width, dtype=after.dtype, device=inputs.device)
    added_norm_kernel[rows,](
        inputs,
        weight,
        residual,
        weight if after is None else after,
        residual if out is None else out,
        width,
        eps,
        BLOCK=_block(width),
        OFFSET=offset,
        NORMED=after is not None,
        **_OPTIONS,
    )
    return out


def _block(width: int) -> int:
    return int(min(_MOST_BLOCK, triton.next_power_of_2(width)))
