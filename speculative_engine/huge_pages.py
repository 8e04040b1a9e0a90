"""Memory in huge pages, where the system has them: what every step reads from end to end is read faster by them."""

from __future__ import annotations

import ctypes
import mmap
import sys

import torch

_PAGE = 1 << 21


def in_huge_pages(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy of a tensor on a CPU, in memory for which huge pages have been asked."""
    size = tensor.nbytes
    if not sys.platform.startswith("linux") or size < _PAGE:
        return tensor.contiguous()
    whole = torch.empty(size + _PAGE, dtype=torch.uint8)
    start = -whole.data_ptr() % _PAGE
    # Before anything is written there. A system that declines gives usual pages.
    ctypes.CDLL(None).madvise(
        ctypes.c_void_p(whole.data_ptr() + start), ctypes.c_size_t(size), ctypes.c_int(mmap.MADV_HUGEPAGE)
    )
    return whole[start : start + size].view(tensor.dtype).view(tensor.shape).copy_(tensor)
