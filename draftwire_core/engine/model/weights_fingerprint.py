"""Fingerprints of models, taken from a sample of their weights."""

from __future__ import annotations

import hashlib

import torch
from torch.distributed.tensor import DTensor

from draftwire_core.engine.checkpoint.load_errors import stop_if_abandoned
from draftwire_core.engine.model.file_pages import let_go

_SAMPLES = 256
"""Weights sampled from each tensor; further training changes nearly all of them."""


def served_fingerprint(weights: str, tokenizer_sha256: str) -> str:
    """SHA-256 (hex) of a model's `weights_fingerprint` and its tokenizer's: a target's fingerprint for its callers."""
    return hashlib.sha256(f"{weights} {tokenizer_sha256}".encode()).hexdigest()


@torch.no_grad()
def weights_fingerprint(
    model: torch.nn.Module, kept: str = "checkpoint", kv_dtype: str = "auto", factors: str | None = None
) -> str:
    """SHA-256 (hex) of the architecture's name and of each tensor's name, shape, dtype and a sample of its values.

    Must be called before the weights are packed. Equal on every device, and for a model split among ranks, all of which
    must call it. kept: the `Weights` that linear layers will keep. kv_dtype: the `KvDtype` of the KV cache, whose
    rounding changes outputs as that of weights does. factors: which of two sets of rotary factors is used, if there are
    two.
    """
    found = hashlib.sha256(type(model).__name__.encode())
    if kept != "checkpoint":
        found.update(f" {kept} ".encode())
    if kv_dtype != "auto":
        found.update(f" keys and values in {kv_dtype} ".encode())
    if factors is not None:
        found.update(f" {factors} rotary factors ".encode())
    for name, weights in sorted(model.state_dict().items()):
        stop_if_abandoned()
        found.update(f"{name} {tuple(weights.shape)} {weights.dtype}".encode())
        whole = weights.full_tensor() if isinstance(weights, DTensor) else weights
        values = whole.flatten()
        sample = values[:: max(1, values.numel() // _SAMPLES)]
        found.update(sample.to("cpu", torch.float64).numpy().tobytes())
        let_go(whole)
    return found.hexdigest()
