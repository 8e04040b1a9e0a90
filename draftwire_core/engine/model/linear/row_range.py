"""The range of row counts for which a matrix product gives each row the same bits, determined by trial.

Libraries choose kernels by the number of rows, and kernels differ in the order of their sums. The counts that share an
order depend on the processor (oneDNN's AMX kernels change order beyond 32 rows, its AVX-512 kernels do not) and on the
weight's shape. The range is therefore measured, not assumed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import torch

from draftwire_core.engine.kernels.huge_pages import empty_in_huge_pages
from draftwire_core.engine.kernels.library import kernels_in_use

Product = Callable[[torch.Tensor], torch.Tensor]

_USUAL = 16
"""Number of rows whose bits are the reference; a typical number for a step."""
MOST_ROWS = 256
"""Largest number of rows that is tried; larger products are always split."""
_LEAST = (1, 2, 4, 8, _USUAL)
_MOST = (_USUAL, 32, 64, 128, MOST_ROWS)
_TRIED = (
    1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 20, 24, 25, 31, 32, 33, 36, 37, 40, 47, 48, 49, 63, 64, 65, 80,
    96, 97, 112, 127, 128, 129, 160, 161, 192, 224, 255, 256,
)  # fmt: skip
_MOST_OUTPUTS = 16384
"""Largest number of outputs that is tried; more give the same result, and trying all of them takes seconds."""
_FEW_OUTPUTS = 256
"""Outputs for which all numbers of rows are tried where a product's outputs do not depend on their number."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """The numbers of rows, from `least` to `most`, that give a row the same bits."""

    least: int
    most: int
    digest: str = field(default="", compare=False)
    """SHA-256 (hex) of the sums that were tried, which another order of summation changes. Products beyond the tried
    numbers of outputs and rows behave alike."""


def row_range(
    make: Callable[[torch.Tensor], Product], outputs: int, inputs: int, dtype: torch.dtype, *, separate: bool = False
) -> RowRange:
    """Tries products with a weight [outputs, inputs] of `dtype`, with the calling thread's number of threads.

    make: takes a weight and returns its product, a function of rows [rows, inputs]. separate: whether the product
    computes an output in the same way however many others there are; it is then tried for a few outputs, and for all of
    them with one number of rows. Results are cached.
    """
    return _tried(make, min(outputs, _MOST_OUTPUTS), inputs, dtype, separate, torch.get_num_threads(), kernels_in_use())


@lru_cache(maxsize=256)
def _tried(
    make: Callable[[torch.Tensor], Product],
    outputs: int,
    inputs: int,
    dtype: torch.dtype,
    separate: bool,
    threads: int,
    kernels: str,
) -> RowRange:
    weight, rows = _sensitive(outputs, inputs, dtype)
    product = make(weight)
    digest = hashlib.sha256(product(rows[:_USUAL]).contiguous().view(torch.uint8).numpy()).hexdigest()
    if separate:
        product = make(weight[:_FEW_OUTPUTS])
    usual = torch.cat([product(part) for part in rows.split(_USUAL)])
    equal = {count: torch.equal(product(rows[:count]), usual[:count]) for count in _TRIED}
    least = next(low for low in _LEAST if all(equal[n] for n in _TRIED if low <= n <= _USUAL))
    most = max(high for high in _MOST if all(equal[n] for n in _TRIED if _USUAL <= n <= high))
    return RowRange(least, most, digest)


def _sensitive(outputs: int, inputs: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight and rows whose products consist of rounding errors alone, so that any other order of a sum shows."""
    generator = torch.Generator().manual_seed(inputs * 31 + outputs)
    half = -(-inputs // 2)
    order = torch.randperm(2 * half, generator=generator)[:inputs]
    # In place, and a few outputs at a time: the numbers of a large weight take much memory in float32.
    numbers = empty_in_huge_pages((outputs, half), torch.float32).normal_(generator=generator)
    rows = torch.randn(MOST_ROWS, half, generator=generator)
    weight = empty_in_huge_pages((outputs, inputs), dtype)
    for part, into in zip(numbers.split(_FEW_OUTPUTS), weight.split(_FEW_OUTPUTS), strict=True):
        into.copy_(torch.cat([part, -part], 1)[:, order])
    return weight, torch.cat([rows, rows], 1)[:, order].to(dtype)
