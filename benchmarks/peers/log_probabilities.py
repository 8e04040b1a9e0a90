"""Log-probabilities of a reference, in the file format of llama-perplexity's --kl-divergence-base.

A file has tokens in chunks of one length, and for each position in the second half of a chunk, but the last, the
distribution of the next token: 16-bit steps between the least and the greatest logit, at most 16 apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_MAGIC = b"_logits_"
_STEPS = 65535
_RANGE = 16.0
"""Natural logarithm of the ratio of the greatest to the least probability that is kept; also, a token of a probability
below exp(-_RANGE) does not count in a divergence."""


def first_scored(length: int) -> int:
    """Returns the first position of a chunk whose next token is scored; the last is `length` - 2."""
    return length // 2


@dataclass(frozen=True)
class Reference:
    """The distributions of the scored positions of a chunk."""

    log_probabilities: np.ndarray
    """float32 [positions, vocabulary], as far apart as the format keeps them."""
    packed: bytes
    """The same in the format."""

    @classmethod
    def of(cls, logits: np.ndarray) -> Reference:
        """logits: float32 [positions, vocabulary]"""
        greatest = logits.max(1, keepdims=True)
        least = np.maximum(logits.min(1, keepdims=True), greatest - _RANGE)
        total = np.log(np.exp(logits - greatest, dtype=np.float64).sum(1, keepdims=True)).astype(np.float32)
        floor = least - greatest - total
        step = (greatest - least) / np.float32(_STEPS)
        counts = np.rint(np.maximum(logits - least, 0) / np.where(step > 0, step, 1)).astype(np.uint16)
        padding = np.zeros((len(logits), logits.shape[1] % 2), np.uint16)
        heads = np.concatenate([step, floor], 1).astype(np.float32).view(np.uint16)
        return cls(step * counts + floor, np.concatenate([heads, counts, padding], 1).tobytes())


def write(path: Path, tokens: np.ndarray, vocabulary: int, references: Iterable[Reference]) -> None:
    """Writes a file. tokens: [chunks, length]; references: one for each chunk."""
    chunks, length = tokens.shape
    with path.open("wb") as file:
        file.write(_MAGIC + np.array([length, vocabulary, chunks], np.int32).tobytes())
        file.write(tokens.astype(np.int32).tobytes())
        for each in references:
            file.write(each.packed)


@dataclass(frozen=True)
class Quality:
    """The distance of some distributions from those of a reference."""

    divergence: float
    """Mean Kullback-Leibler divergence from the reference, in nats."""
    perplexity: float
    """Exponential of the mean negative log-probability of the text's own tokens."""
    positions: int


def quality(logits: Iterable[np.ndarray], references: Iterable[Reference], texts: Iterable[np.ndarray]) -> Quality:
    """Compares logits with their reference by llama-perplexity's rules.

    For each chunk, logits: float32 [positions, vocabulary]; texts: the token that follows each position.
    """
    divergences, losses = [], []
    for found, reference, text in zip(logits, references, texts, strict=True):
        wide = found.astype(np.float64)
        wide -= wide.max(1, keepdims=True)
        wide -= np.log(np.exp(wide).sum(1, keepdims=True))
        base = reference.log_probabilities.astype(np.float64)
        counted = np.where(base > -_RANGE, np.exp(base) * (base - wide), 0.0)
        divergences.append(counted.sum(1))
        losses.append(-wide[np.arange(len(text)), text])
    positions = sum(map(len, losses))
    loss = float(np.concatenate(losses).mean())
    return Quality(float(np.concatenate(divergences).mean()), math.exp(loss), positions)
