"""Pages of mapped files, which count as a process's memory once they have been read, until it lets go of them.

A checkpoint is mapped from disk and packed weight by weight. Without `let_go` all that was read would stay next to all
that was packed.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

_PAGEMAP = Path("/proc/self/pagemap")
_PRESENT, _SWAPPED, _OF_FILE = (np.uint64(1 << bit) for bit in (63, 62, 61))
_DONT_NEED = 4
_FEWEST_PAGES = 32
"""Of a tensor that is let go: asking about fewer takes longer than they are worth, and models have many norms."""


def let_go(tensor: torch.Tensor) -> None:
    """Takes the pages of a tensor that is a view of a mapped file out of this process's memory.

    A later read of the tensor gets them from the file again, in most cases from the system's cache. Does nothing to
    other and to small tensors, to pages that others share with the tensor, or where any page of the tensor was written
    to.
    """
    if not sys.platform.startswith("linux") or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return
    size = mmap.PAGESIZE
    first = -(-tensor.data_ptr() // size)
    count = (tensor.data_ptr() + tensor.nbytes) // size - first
    if count < _FEWEST_PAGES:
        return
    try:
        with _PAGEMAP.open("rb") as pagemap:
            pagemap.seek(8 * first)
            pages = np.frombuffer(pagemap.read(8 * count), np.uint64)
    except OSError:  # systems may hide it
        return
    present = pages & _PRESENT > 0
    # A page that was written to is no longer the file's, and would be lost.
    if len(pages) == count and not (pages & _SWAPPED).any() and (pages[present] & _OF_FILE).all():
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first * size), ctypes.c_size_t(count * size), _DONT_NEED)


def let_go_of(module: nn.Module) -> None:
    """Calls `let_go` for all tensors of a module."""
    for tensor in (*module.parameters(), *module.buffers()):
        let_go(tensor.data)
