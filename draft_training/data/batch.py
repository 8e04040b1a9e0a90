"""Examples as tensors, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draft_training.data.example import Example


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts padded at their ends, which no earlier position sees, and all their distributions in one list."""

    input_ids: Tensor
    """int64 [texts, longest]."""
    rows: Tensor
    """Where in the flattened logits the draft's own distribution of each position is, int64 [positions]."""
    token_ids: Tensor
    """int64 [positions, top]."""
    log_probs: Tensor
    """float32 [positions, top]."""

    def logits(self, model: torch.nn.Module) -> Tensor:
        """A model's logits at the positions, [positions, vocabulary]."""
        logits: Tensor = model(input_ids=self.input_ids, use_cache=False).logits
        return logits.flatten(0, 1)[self.rows]


def make_batch(examples: Sequence[Example], device: str = "cpu") -> Batch:
    """Lays out examples. They may have different numbers of known tokens: the fewest count for all."""
    # What follows the last position wanted is of no use: the distribution there is over the next token.
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
