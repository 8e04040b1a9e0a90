"""The sizes of blocks that give a product's rows the same bits.

A GPU has several instructions for products. Which one the compiler takes depends on the rows of a block; whether they
add up alike is the hardware's business, so it is tried, with real weights.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from draftwire_core.engine.model.cuda.kernels.packed_product import multiply_packed
from draftwire_core.engine.model.cuda.kernels.product import ROW_BLOCKS, Gate, multiply
from draftwire_core.engine.model.cuda.weights.device_weight import DeviceWeight

_PROMPT = 8 * ROW_BLOCKS[-1]
"""Rows of several blocks, which may have more outputs each than a single one."""
_COUNTS = (1, 2, 4, 8)
"""Blocks of a size that are tried: products of more rows are cut in another way."""
_SEED = 20240813
_SPREAD = 3.0
"""Standard deviation of the logarithm of an input's size: sums in another order then differ for most outputs."""


def equal_blocks(
    products: Iterable[tuple[Tensor | DeviceWeight, Gate | None]], dtype: torch.dtype = torch.bfloat16
) -> tuple[int, ...]:
    """The sizes of ROW_BLOCKS that give a row the same bits as the largest does, which prompts need.

    products: weights [outputs, inputs] and gates of all products, of which one of each shape is tried. dtype: of the
    inputs of packed weights.
    """
    equal = set(ROW_BLOCKS)
    tried: set[tuple[object, ...]] = set()
    for weight, gate in products:
        kind = (weight.kind, weight.group) if isinstance(weight, DeviceWeight) else None
        if (kind, weight.shape, gate) in tried:
            continue
        tried.add((kind, weight.shape, gate))
        inputs = _draw(_PROMPT, weight).to(dtype if isinstance(weight, DeviceWeight) else weight.dtype)
        # In float32: rounded further, different sums may be equal.
        expected = _multiplied(inputs, weight, gate, ROW_BLOCKS[-1])
        for block in sorted(equal):
            counts = (block * count for count in _COUNTS)
            if not all(
                torch.equal(_multiplied(inputs[:rows], weight, gate, block), expected[:rows]) for rows in counts
            ):
                equal.discard(block)
    return tuple(sorted(equal | {ROW_BLOCKS[-1]}))


def _multiplied(inputs: Tensor, weight: Tensor | DeviceWeight, gate: Gate | None, block: int) -> Tensor:
    if isinstance(weight, DeviceWeight):
        return multiply_packed(inputs, weight, None, add_to=None, gate=gate, dtype=torch.float32, row_blocks=(block,))
    return multiply(inputs, weight, gate=gate, dtype=torch.float32, row_blocks=(block,))


def _draw(rows: int, weight: Tensor | DeviceWeight) -> Tensor:
    """Random inputs of a weight, float32 [rows, inputs]."""
    generator = torch.Generator(weight.device).manual_seed(_SEED)
    sizes, numbers = (torch.randn(rows, weight.shape[1], generator=generator, device=weight.device) for _ in range(2))
    return numbers * (_SPREAD * sizes).exp()
