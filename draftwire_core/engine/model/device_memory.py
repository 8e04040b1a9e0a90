"""The memory of GPUs: how much is free, and giving back what torch keeps for itself."""

from __future__ import annotations

import torch


def memory(device: torch.device) -> tuple[int, int]:
    """Free and total bytes of a GPU, all processes' use counted. What torch holds and nothing uses is not free."""
    free, total = torch.cuda.mem_get_info(device)
    return free, total


def return_unused() -> None:
    """Returns memory of GPUs that torch holds and nothing uses, so that another model or process can have it."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
