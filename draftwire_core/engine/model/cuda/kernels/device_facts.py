"""Facts about a device that decide how kernels are cut and what they compute with."""

from __future__ import annotations

from functools import cache

import torch

MOST_SHARED = 160 * 1024
"""Bytes that a program takes at most, also where it could have more."""


@cache
def processors(device: torch.device) -> int:
    """Number of a GPU's processors; 1 for the CPU, where Triton's interpreter runs programs one by one."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def shared_bytes(device: torch.device) -> int:
    """Bytes of shared memory that a program may have: 99 KB on most GPUs, more on those of data centres."""
    if device.type != "cuda":
        return MOST_SHARED
    about = torch.cuda.get_device_properties(device)
    return min(MOST_SHARED, int(about.shared_memory_per_block_optin))


@cache
def native_floats(device: torch.device) -> bool:
    """Whether a device has an instruction that converts 8-bit floats (e4m3): NVIDIA's since Ada and Hopper."""
    return device.type == "cuda" and bool(torch.cuda.get_device_capability(device) >= (8, 9))
