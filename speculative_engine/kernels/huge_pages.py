"""Memory in huge pages, where the system has them: weights, which every step reads from end to end, are read faster."""

from __future__ import annotations

import contextlib
import mmap
import sys

import torch

_PAGE = 1 << 21


def in_huge_pages(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy of a tensor on a CPU, in memory for which huge pages are requested."""
    size = tensor.nbytes
    if not sys.platform.startswith("linux") or size < _PAGE:
        return tensor.contiguous()
    # Not torch's memory: what its allocator has used before already has normal pages, and keeps them.
    memory = mmap.mmap(-1, -(-size // _PAGE) * _PAGE + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % _PAGE
    with contextlib.suppress(OSError):  # a system without huge pages gives normal ones
        memory.madvise(mmap.MADV_HUGEPAGE)
    return whole[start : start + size].view(tensor.dtype).view(tensor.shape).copy_(tensor)
