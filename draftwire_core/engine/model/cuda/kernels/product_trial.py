"""The trial of products: which ways to cut one into programs give its rows the same bits.

A GPU has several instructions for products. Which one the compiler takes depends on a program's rows and outputs;
whether they add up alike is the hardware's business, so it is tried, with real weights. Numbers of rows that are cut
alike run the same code, so each way is tried once. Biases, residuals and rounding follow the sums, element by element.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from draftwire_core.engine.model.cuda.kernels.packed_product import multiply_packed
from draftwire_core.engine.model.cuda.kernels.product import MOST_ROWS, ROW_BLOCKS, Cuts, Gate, Shape, multiply
from draftwire_core.engine.model.cuda.weights.device_weight import DeviceWeight

_LARGEST = ROW_BLOCKS[-1]
_SEED = 20240813
_SPREAD = 3.0
"""Standard deviation of the logarithm of an input's size: sums in another order then differ for most outputs."""


class ProductTrial(NamedTuple):
    """The result of a trial."""

    cuts: Cuts
    """The cuts that give a row the bits that it has in a prompt of the most rows."""
    lost: tuple[str, ...]
    """The others, in words."""


def try_product(weight: Tensor | DeviceWeight, gate: Gate | None, dtype: torch.dtype = torch.bfloat16) -> ProductTrial:
    """Tries a product in all ways in which passes of 1 to MOST_ROWS rows cut it.

    weight: [outputs, inputs]. dtype: of the inputs of a packed weight.
    """
    inputs = _draw(MOST_ROWS, weight).to(dtype if isinstance(weight, DeviceWeight) else weight.dtype)
    ways = [*_ways(weight, gate)]
    largest = ways[-1].shape
    # In float32: rounded further, different sums may be equal.
    expected = _multiplied(inputs, weight, gate, Cuts((_LARGEST,), largest))
    lost = [
        way
        for way in ways[:-1]
        if not torch.equal(
            _multiplied(inputs[: way.rows], weight, gate, Cuts((way.block,), way.shape)), expected[: way.rows]
        )
    ]
    blocks = {way.block for way in lost}
    cuts = Cuts(
        tuple(block for block in ROW_BLOCKS if block == _LARGEST or block not in blocks),
        largest if _LARGEST in blocks else None,
    )
    outputs, inner = weight.shape
    return ProductTrial(cuts, tuple(f"{outputs} x {inner} in {way}" for way in lost))


class _Way(NamedTuple):
    """A way to cut a product."""

    block: int
    """Rows of a block."""
    shape: Shape | None
    """None for packed weights, which have one for each size of blocks."""
    rows: int
    """The most rows that are cut so."""

    def __str__(self) -> str:
        return f"blocks of {self.block} rows" + ("" if self.shape is None else f" and {self.shape.outputs} outputs")


def _ways(weight: Tensor | DeviceWeight, gate: Gate | None) -> Iterator[_Way]:
    """Yields each way in which `Cuts` cuts a product of up to MOST_ROWS rows; last the one for that many."""
    if isinstance(weight, DeviceWeight):
        yield from (_Way(block, None, block) for block in ROW_BLOCKS[:-1])
        yield _Way(_LARGEST, None, MOST_ROWS)
        return
    outputs = len(weight) if gate is None else len(weight) // 2
    found: dict[tuple[int, Shape], int] = {}
    # A shape depends on the number of blocks, and only the largest may be several.
    for rows in (*ROW_BLOCKS[:-1], *range(_LARGEST, MOST_ROWS + 1, _LARGEST)):
        cut = Cuts().cut(rows, outputs, gate is not None, weight.device)
        found.pop(cut, None)
        found[cut] = rows
    yield from (_Way(block, shape, rows) for (block, shape), rows in found.items())


def _multiplied(inputs: Tensor, weight: Tensor | DeviceWeight, gate: Gate | None, cuts: Cuts) -> Tensor:
    if isinstance(weight, DeviceWeight):
        return multiply_packed(
            inputs, weight, None, add_to=None, gate=gate, dtype=torch.float32, row_blocks=cuts.row_blocks
        )
    return multiply(inputs, weight, gate=gate, dtype=torch.float32, cuts=cuts)


def _draw(rows: int, weight: Tensor | DeviceWeight) -> Tensor:
    """Random inputs of a weight, float32 [rows, inputs]."""
    generator = torch.Generator(weight.device).manual_seed(_SEED)
    sizes, numbers = (torch.randn(rows, weight.shape[1], generator=generator, device=weight.device) for _ in range(2))
    return numbers * (_SPREAD * sizes).exp()
