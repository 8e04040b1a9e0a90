"""The device of a benchmark."""

from __future__ import annotations

import sys

import torch


def usable_device(name: str) -> torch.device:
    """Returns a device by its name. Exits if it is a GPU and this torch sees none."""
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("this torch sees no CUDA device; the device cpu tries the code")
    return device
