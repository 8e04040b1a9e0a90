"""Large weights around small ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_SPREAD = 0.02  # standard deviation of the weights that do not matter


class Filler:
    """Makes large weights around small ones."""

    def __init__(self, seed: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.generator = torch.Generator(device).manual_seed(seed)
        self.dtype = dtype
        self.device = device

    def random(self, rows: int, columns: int, corner: Tensor | None = None) -> Tensor:
        """[rows, columns] with `corner` at the top left and random values elsewhere."""
        values = torch.empty(rows, columns, device=self.device).normal_(0, _SPREAD, generator=self.generator)
        return _with_corner(values.to(self.dtype), corner)

    def zero(self, rows: int, columns: int, corner: Tensor | None = None) -> Tensor:
        """[rows, columns] with `corner` at the top left and zeros elsewhere."""
        return _with_corner(torch.zeros(rows, columns, dtype=self.dtype, device=self.device), corner)

    def norm(self, size: int, small: Tensor | None = None) -> Tensor:
        """[size] RMSNorm weights: `small` rescaled for the average over `size` dimensions, then ones."""
        values = torch.ones(size, device=self.device)
        if small is not None:
            values[: len(small)] = small.float() * math.sqrt(len(small) / size)
        return values.to(self.dtype)


def _with_corner(values: Tensor, corner: Tensor | None) -> Tensor:
    if corner is not None:
        values[: corner.shape[0], : corner.shape[1]] = corner
    return values
