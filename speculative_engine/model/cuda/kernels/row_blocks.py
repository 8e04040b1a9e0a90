"""Which sizes of blocks give a product's rows the same bits.

A GPU has several instructions for products. Which one the compiler takes depends on the rows of a block; whether they
add up alike is the hardware's business, so it is tried, with real weights.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from speculative_engine.model.cuda.kernels.product import ROW_BLOCKS, multiply

_SEED = 20240813
_SPREAD = 3.0
"""Standard deviation of the logarithm of an input's size: sums in another order then differ for most outputs."""


def equal_blocks(weights: Iterable[Tensor]) -> tuple[int, ...]:
    """The sizes of ROW_BLOCKS that give a row the same bits as the largest does, which prompts need. weights: matrices
    [outputs, inputs] of all shapes that are multiplied."""
    equal = set(ROW_BLOCKS)
    tried: set[torch.Size] = set()
    for weight in weights:
        if weight.shape in tried:
            continue
        tried.add(weight.shape)
        generator = torch.Generator(weight.device).manual_seed(_SEED)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, device=weight.device)

        rows = ROW_BLOCKS[-1]
        inputs = (draw(rows, weight.shape[1]) * (_SPREAD * draw(rows, weight.shape[1])).exp()).to(weight.dtype)
        expected = multiply(inputs, weight)
        equal = {
            block for block in equal if torch.equal(multiply(inputs[:block], weight, row_blocks=(block,)), expected[:block])
        }
    return tuple(sorted(equal | {ROW_BLOCKS[-1]}))
