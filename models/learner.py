"""A model that learns alone, in one process, and its optimizers."""

from __future__ import annotations

import torch
from torch import nn

from train import ADAM_RATE, MUON_DECAY, MUON_RATE


class Learner:
    """A model, Muon for its hidden matrices, and AdamW for its embedding and all that is no matrix."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        named = list(model.named_parameters())
        hidden = [p for name, p in named if p.dim() == 2 and "embed" not in name]
        rest = [p for name, p in named if p.dim() != 2 or "embed" in name]
        self.muon = torch.optim.Muon(hidden, momentum=0.95, nesterov=True, weight_decay=MUON_DECAY)
        self.adam = torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=0.0)

    def update(self, scale: float) -> None:
        """One update with the learning rates times `scale`, along the gradients, which it then drops."""
        for optimizer, rate in ((self.muon, MUON_RATE), (self.adam, ADAM_RATE)):
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
