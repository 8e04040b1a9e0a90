"""Tensors in huge pages, where the system has them; they speed up reading weights, which every step reads in full."""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from collections.abc import Sequence

import torch

_PAGE = 1 << 21


def empty_in_huge_pages(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns a contiguous CPU tensor for the caller to fill, in memory for which huge pages are requested.

    The memory is the tensor's own and goes back to the system with it, whereas an allocator may keep it.
    """
    size = math.prod(shape) * dtype.itemsize
    if not sys.platform.startswith("linux") or size < _PAGE:
        return torch.empty(shape, dtype=dtype)
    # Not from torch's allocator: memory that it reuses already has normal pages and keeps them.
    memory = mmap.mmap(-1, -(-size // _PAGE) * _PAGE + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % _PAGE
    # A last page that would be mostly empty takes memory for nothing.
    pages = round(size / _PAGE)
    with contextlib.suppress(OSError):  # without huge pages, normal ones remain
        memory.madvise(mmap.MADV_HUGEPAGE, start, pages * _PAGE)
    return whole[start : start + size].view(dtype).view(shape)


def in_huge_pages(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous copy of a CPU tensor, in memory for which huge pages are requested."""
    return empty_in_huge_pages(tuple(tensor.shape), tensor.dtype).copy_(tensor)


def stacked_in_huge_pages(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the rows of CPU tensors of one dtype, in turn; a single tensor is returned as it is."""
    first, *others = tensors
    if not others:
        return first
    found = empty_in_huge_pages((sum(map(len, tensors)), *first.shape[1:]), first.dtype)
    return torch.cat(list(tensors), out=found)
