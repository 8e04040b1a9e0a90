"""The number of CPU threads of a forward pass."""

from __future__ import annotations

import os

import torch


def set_cpu_threads(count: int) -> None:
    """Sets the number of CPU threads for forward passes of the calling thread; OpenMP keeps it per thread."""
    torch.set_num_threads(count)


def share_of_threads(ranks: int) -> int | None:
    """CPU threads per rank when several share this machine's cores; None, torch's default, for a single rank."""
    return None if ranks == 1 else max(1, _cores() // ranks)


def _cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
