"""Which sizes of blocks give a product's rows the same bits.

A GPU has several instructions for products. Which one the compiler takes depends on the rows of a block; whether they
add up alike is the hardware's business, so it is tried, with real weights.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from speculative_engine.model.cuda.kernels.product import ROW_BLOCKS, Gate, multiply

_PROMPT = 8 * ROW_BLOCKS[-1]
"""Rows of several blocks, which may have more outputs each than a single one."""
_SEED = 20240813
_SPREAD = 3.0
"""Standard deviation of the logarithm of an input's size: sums in another order then differ for most outputs."""


def equal_blocks(products: Iterable[tuple[Tensor, Gate | None]]) -> tuple[int, ...]:
    """The sizes of ROW_BLOCKS that give a row the same bits as the largest does, which prompts need.

    products: weights [outputs, inputs] and gates of all products, of which one of each shape is tried.
    """
    equal = set(ROW_BLOCKS)
    tried: set[tuple[torch.Size, Gate | None]] = set()
    for weight, gate in products:
        if (weight.shape, gate) in tried:
            continue
        tried.add((weight.shape, gate))
        inputs = _draw(_PROMPT, weight)
        # In float32: rounded further, different sums may be equal.
        expected = multiply(inputs, weight, gate=gate, dtype=torch.float32, row_blocks=ROW_BLOCKS[-1:])
        for block in sorted(equal):
            found = multiply(inputs[:block], weight, gate=gate, dtype=torch.float32, row_blocks=(block,))
            if not torch.equal(found, expected[:block]):
                equal.discard(block)
    return tuple(sorted(equal | {ROW_BLOCKS[-1]}))


def _draw(rows: int, weight: Tensor) -> Tensor:
    """Random inputs of a weight, [rows, inputs]."""
    generator = torch.Generator(weight.device).manual_seed(_SEED)
    sizes, numbers = (torch.randn(rows, weight.shape[1], generator=generator, device=weight.device) for _ in range(2))
    return (numbers * (_SPREAD * sizes).exp()).to(weight.dtype)
