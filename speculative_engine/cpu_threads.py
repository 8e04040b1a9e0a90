"""How many CPU threads a forward pass takes."""

from __future__ import annotations

import torch


def set_cpu_threads(count: int) -> None:
    """Give the forward passes of the calling thread `count` CPU threads. OpenMP keeps the number for each thread."""
    torch.set_num_threads(count)
