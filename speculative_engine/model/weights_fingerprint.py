"""Tells models apart by their weights, without reading all of them."""

from __future__ import annotations

import hashlib

import torch
from torch.distributed.tensor import DTensor

_SAMPLES = 256
"""Weights looked at in each tensor; training on changes nearly all of them."""


@torch.no_grad()
def weights_fingerprint(model: torch.nn.Module, kept: str = "checkpoint") -> str:
    """Hash (hex) of the architecture's name and every tensor's name, shape, type and a sample of its values.

    To be taken before the weights are laid out anew for speed. The same for a model on any device, and split among
    ranks, all of which have to ask. kept: what of the weights the model will keep, if that is not the checkpoint's.
    """
    found = hashlib.sha256(type(model).__name__.encode())
    if kept != "checkpoint":
        found.update(f" {kept} ".encode())
    for name, weights in sorted(model.state_dict().items()):
        found.update(f"{name} {tuple(weights.shape)} {weights.dtype}".encode())
        whole = weights.full_tensor() if isinstance(weights, DTensor) else weights
        values = whole.flatten()
        sample = values[:: max(1, values.numel() // _SAMPLES)]
        found.update(sample.to("cpu", torch.float64).numpy().tobytes())
    return found.hexdigest()
