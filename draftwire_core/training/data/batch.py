"""Batches of examples as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draftwire_core.training.data.example import Example


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts padded at the end, which no earlier position sees, and their distributions, flattened."""

    input_ids: Tensor
    """int64 [texts, longest]."""
    rows: Tensor
    """Row of each position's draft distribution in the flattened logits, int64 [positions]."""
    token_ids: Tensor
    """int64 [positions, top]."""
    log_probs: Tensor
    """float32 [positions, top]."""

    def logits(self, model: torch.nn.Module) -> Tensor:
        """Returns a model's logits at the positions, [positions, vocabulary]."""
        logits: Tensor = model(input_ids=self.input_ids, use_cache=False).logits
        return logits.flatten(0, 1)[self.rows]


def make_batch(examples: Sequence[Example], device: str = "cpu") -> Batch:
    """Lays out examples. If they have different numbers of known tokens, all are cut to the fewest."""
    # Tokens from the last position on are not needed: its distribution is over the token that stands there.
    lengths = [example.first + example.positions - 1 for example in examples]
    longest, top = max(lengths), min(example.token_ids.shape[1] for example in examples)
    input_ids = np.zeros((len(examples), longest), np.int64)
    rows: list[np.ndarray] = []
    for index, (example, length) in enumerate(zip(examples, lengths, strict=True)):
        input_ids[index, :length] = example.tokens[:length]
        rows.append(np.arange(example.first - 1, length) + index * longest)
    return Batch(
        torch.from_numpy(input_ids).to(device),
        torch.from_numpy(np.concatenate(rows)).to(device),
        torch.from_numpy(np.concatenate([each.token_ids[:, :top] for each in examples]).astype(np.int64)).to(device),
        torch.from_numpy(np.concatenate([each.log_probs[:, :top] for each in examples]).astype(np.float32)).to(device),
    )
