"""GPUs: their free memory, facts that decide how kernels are cut, and the first run of Triton kernels."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch


def memory(device: torch.device) -> tuple[int, int]:
    """Free and total bytes of a GPU, all processes' use counted. What torch holds and nothing uses is not free."""
    free, total = torch.cuda.mem_get_info(device)
    return free, total


def return_unused() -> None:
    """Returns memory of GPUs that torch holds and nothing uses, so that another model or process can have it."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


MOST_SHARED = 160 * 1024
"""Bytes that a program takes at most, also if it could have more."""


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


class KernelsUnusableError(Exception):
    """Raised where kernels cannot be used; the message says why."""


@contextmanager
def kernels_tried() -> Iterator[None]:
    """Raises KernelsUnusableError for the errors of kernels that do not compile or do not run within the context."""
    from triton import TritonError

    try:
        yield
    except (TritonError, RuntimeError, OSError, ImportError, subprocess.SubprocessError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise KernelsUnusableError(f"the kernels do not run: {reason or type(error).__name__}") from error
