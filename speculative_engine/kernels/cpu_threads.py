"""The number of CPU threads of a forward pass."""

from __future__ import annotations

import os

import torch


def set_cpu_threads(count: int) -> None:
    """Give the forward passes of the calling thread `count` CPU threads. OpenMP keeps the number for each thread."""
    torch.set_num_threads(count)


def share_of_threads(ranks: int) -> int | None:
    """CPU threads of each of several ranks, which share this machine's cores; None, torch's choice, for one rank."""
    return None if ranks == 1 else max(1, _cores() // ranks)


def _cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
