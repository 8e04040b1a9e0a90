"""Fills what no checkpoint stores of a model."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel


def compute_buffers(model: PreTrainedModel) -> None:
    """Fills the buffers that are computed rather than stored, by transformers' own initialisation."""
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_meta:
            tensor._is_hf_initialized = True  # so that it stays as it is
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.is_meta:
                module._buffers[name] = torch.empty_like(buffer, device="cpu")
    model.initialize_weights()
