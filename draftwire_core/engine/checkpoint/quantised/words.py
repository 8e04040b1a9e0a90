"""Integers of 4 or 8 bits that are packed into 32-bit words, the first in the lowest bits."""

from __future__ import annotations

import torch


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Returns the integers in words, int32 [..., words]: a new uint8 [..., words * 32 / bits]."""
    given = words.contiguous().view(torch.uint8)
    if bits == 8:
        return given.clone()
    return torch.stack([given & 15, given >> 4], -1).flatten(-2)
