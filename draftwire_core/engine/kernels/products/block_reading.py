"""Two ways of reading weights in blocks from memory, of which a measurement at load chooses the faster.

Several streams side by side suit the prefetching of some processors. A Zen 5 reads one stream in order, prefetched
further ahead, 1.5 times as fast. The results have the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal, get_args

import torch

from draftwire_core.engine.kernels.library import loaded
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct

BlockReading = Literal["side by side", "in order"]
"""Ways of reading groups of outputs; the first one is the default."""

_LEAST_BYTES = 64 << 20
"""With less, a processor's caches could hold what is measured."""
_MOST_BYTES = 256 << 20
_RUNS = 5

_chosen: list[BlockReading] = []
"""The way of this process; empty until it has been chosen."""


def use_block_reading(reading: BlockReading) -> None:
    """Chooses how this process reads weights in blocks; needs the library. Products that run meanwhile are not
    affected in their results."""
    loaded().draftwire_read_blocks_in_order(reading == "in order")
    _chosen[:] = [reading]


def block_reading() -> BlockReading:
    """Returns how this process reads weights in blocks."""
    return _chosen[0] if _chosen else get_args(BlockReading)[0]


@torch.inference_mode()
def choose_block_reading(products: Sequence[CompiledProduct]) -> None:
    """Chooses the faster way of reading for some products of weights in blocks, by multiplying a row by them.

    That takes about 0.1 s. It changes nothing if these have less than 64 MiB of weights, or if this process has chosen:
    a drafter that is loaded next to a running target would measure both.
    """
    if _chosen:
        return
    size, measured = 0, []
    for product in products:
        if size < _MOST_BYTES:
            size += product.stored.numel() * product.stored.element_size()
            measured.append((product, torch.zeros(1, product.inputs, dtype=torch.bfloat16)))
    if size < _LEAST_BYTES:
        return
    ways = get_args(BlockReading)
    fastest = dict.fromkeys(ways, float("inf"))
    for _ in range(_RUNS):
        for way in ways:
            use_block_reading(way)
            started = time.perf_counter()
            for product, row in measured:
                product(row)
            fastest[way] = min(fastest[way], time.perf_counter() - started)
    use_block_reading(min(ways, key=fastest.__getitem__))
