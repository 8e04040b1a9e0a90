"""Tensors in huge pages, where the system has them; they speed up reading weights, which every step reads in full."""

from __future__ import annotations

import contextlib
import mmap
import sys

import torch

_PAGE = 1 << 21


def in_huge_pages(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous copy of a CPU tensor, in memory for which huge pages are requested."""
    size = tensor.nbytes
    if not sys.platform.startswith("linux") or size < _PAGE:
        return tensor.contiguous()
    # Not from torch's allocator: memory that it reuses already has normal pages and keeps them.
    memory = mmap.mmap(-1, -(-size // _PAGE) * _PAGE + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % _PAGE
    with contextlib.suppress(OSError):  # without huge pages, normal ones remain
        memory.madvise(mmap.MADV_HUGEPAGE)
    return whole[start : start + size].view(tensor.dtype).view(tensor.shape).copy_(tensor)
