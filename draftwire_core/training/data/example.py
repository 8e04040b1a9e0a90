"""An example, a target's continuation of a prompt with its likeliest tokens, and batches of examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ids = NDArray[np.int32]
LogProbs = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Example:
    """A text with sparse distributions: at temperature 1, without filters."""

    tokens: Ids
    """The text, prompt and continuation."""
    first: int
    """Position of the first distribution. The distribution of position p is over its token, given all before it."""
    token_ids: Ids
    """The likeliest tokens, best first: [positions, top]."""
    log_probs: LogProbs
    """Natural log-probabilities of the tokens in the target: [positions, top]."""

    def check(self) -> Example:
        """Returns self; raises ValueError if the parts do not fit together."""
        positions = len(self.token_ids)
        if self.token_ids.ndim != 2 or self.token_ids.shape != self.log_probs.shape or not positions:
            raise ValueError("an example must have as many log-probabilities as tokens, for at least one position")
        if not 1 <= self.first <= self.first + positions - 1 <= len(self.tokens):
            raise ValueError(f"{positions} distributions from position {self.first} for {len(self.tokens)} tokens")
        return self

    @property
    def positions(self) -> int:
        """Number of distributions."""
        return len(self.token_ids)


def example_of(tokens: list[int], first: int, token_ids: list[list[int]], log_probs: list[list[float]]) -> Example:
    """Returns an example from lists."""
    return Example(
        np.array(tokens, np.int32), first, np.array(token_ids, np.int32), np.array(log_probs, np.float32)
    ).check()


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
