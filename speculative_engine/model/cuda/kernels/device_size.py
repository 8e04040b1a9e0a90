"""How many programs a device runs at once."""

from __future__ import annotations

from functools import cache

import torch


@cache
def processors(device: torch.device) -> int:
    """Number of a GPU's processors; 1 for the CPU, where Triton's interpreter runs programs one by one."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
