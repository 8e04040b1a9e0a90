"""Times products in all ways to cut them into programs: where the shapes in `kernels/product.py` come from.

    python -m benchmarks.gpu.product_shapes [--blocks 16,64,128] [--json]

The products are those of Llama 3.1 8B. Kernels are compiled beforehand by as many processes as there are processors;
then each is timed in a CUDA graph, over weights by turns, since a single one would stay in the second-level cache.
--device cpu tries the code in Triton's interpreter (TRITON_INTERPRET=1), on a small product.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from typing import NamedTuple

import torch

from benchmarks.gpu.device import usable_device
from benchmarks.gpu.figure_log import FigureLog, Figures
from benchmarks.gpu.graph_timing import microseconds
from benchmarks.harness.report import add_report_options
from draftwire_core.engine.model.cuda.kernels.product import Cuts, Gate, Shape, multiply

_WEIGHT_BYTES = 400_000_000
_LEAST_CALLS = 4
_SHARED_BYTES = 200 * 1024
_MOST_SUMS = 256
"""Sums of a thread."""
ROWS = {16: (1, 16), 64: (64, 128), 128: (128, 256, 1024)}
"""Numbers of rows at which products are timed, by rows of a block."""


class Product(NamedTuple):
    """A product of a model's layer."""

    name: str
    outputs: int
    inputs: int
    gate: Gate | None = None
    added: bool = False
    """Whether the product is added to float32 rows."""


PRODUCTS = (
    Product("qkv", 6144, 4096),
    Product("o", 4096, 4096, added=True),
    Product("gate and up", 14_336, 4096, gate="silu"),
    Product("down", 4096, 14_336, added=True),
    Product("head", 128_256, 4096),
)
TOY = (Product("toy", 64, 128),)


def shapes(block: int, gated: bool) -> Iterator[Shape]:
    """The shapes that fit into registers and shared memory."""
    outputs = (16, 32, 64) if block == 16 else (32, 64, 128, 256)
    for cut in itertools.product(outputs, (64, 128, 256), (2, 3, 4, 5, 6, 8), (2, 4, 8)):
        shape = Shape(*cut)
        loaded = shape.stages * (block + shape.outputs * (1 + gated)) * shape.inner * 2
        sums = block * shape.outputs * (1 + gated) // (32 * shape.warps)
        if loaded <= _SHARED_BYTES and sums <= _MOST_SUMS:
            yield shape


def weight_of(product: Product, device: torch.device) -> torch.Tensor:
    """A random weight."""
    outputs = product.outputs * (1 if product.gate is None else 2)
    return torch.randn(outputs, product.inputs, dtype=torch.bfloat16, device=device)


class Multiplier:
    """Some rows, and weights of a product that are multiplied by turns."""

    def __init__(self, product: Product, rows: int, device: torch.device, weights: int = 1):
        self.weights = [weight_of(product, device) for _ in range(weights)]
        self._turns = cycle(self.weights)
        self._inputs = torch.randn(rows, product.inputs, dtype=torch.bfloat16, device=device)
        self._added = torch.zeros(rows, product.outputs, device=device) if product.added else None
        self._gate = product.gate

    def run(self, block: int, shape: Shape) -> None:
        """Multiplies the rows by the next weight."""
        weight = next(self._turns)
        multiply(self._inputs, weight, add_to=self._added, gate=self._gate, cuts=Cuts((block,), shape))


def times(product: Product, block: int, rows: int, device: torch.device) -> Iterator[Figures]:
    """Microseconds by outputs x inputs x stages x warps."""
    size = 2 * product.inputs * product.outputs * (1 if product.gate is None else 2)
    weights = 1 + _WEIGHT_BYTES // size if device.type == "cuda" else 1
    multiplier = Multiplier(product, rows, device, weights)
    found: dict[str, float] = {}
    for shape in cuts(product, block, device):
        taken = microseconds(partial(multiplier.run, block, shape), device, max(_LEAST_CALLS, weights))
        found[f"{shape.outputs}x{shape.inner}x{shape.stages}x{shape.warps}"] = round(taken, 2)
    yield {f"{product.name}, {rows} rows in blocks of {block}: microseconds": found}


def cuts(product: Product, block: int, device: torch.device) -> Iterator[Shape]:
    """The shapes that are timed: on a CPU one."""
    return islice(shapes(block, product.gate is not None), None if device.type == "cuda" else 1)


def compile_some(jobs: list[tuple[Product, int, Shape]]) -> None:
    """Runs products once, which leaves their kernels in Triton's cache."""
    for product, block, shape in jobs:
        Multiplier(product, block, torch.device("cuda")).run(block, shape)


def main() -> None:
    """Times all of them."""
    options = read_options()
    device = usable_device(options.device)
    cuda = device.type == "cuda"
    products = PRODUCTS if cuda else TOY
    if cuda:
        jobs = [
            (product, block, shape)
            for product, block in itertools.product(products, options.blocks)
            for shape in cuts(product, block, device)
        ]
        parts = 4 * (os.cpu_count() or 1)
        with multiprocessing.get_context("spawn").Pool() as pool:
            pool.map(compile_some, [jobs[first::parts] for first in range(parts)], chunksize=1)
    log = FigureLog(options.json)
    with log.saved(options):
        for product, block in itertools.product(products, options.blocks):
            for rows in ROWS[block]:
                log.run(product.name, options.part_seconds, partial(times, product, block, rows, device))


def read_options() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.product_shapes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the code")
    parser.add_argument("--blocks", type=_blocks, default=list(ROWS), help="rows of blocks, for example 16,64")
    parser.add_argument("--part-seconds", type=float, default=60.0, help="longest time of a product's shapes")
    add_report_options(parser)
    return parser.parse_args()


def _blocks(text: str) -> list[int]:
    blocks = [int(each) for each in text.split(",")]
    if unknown := sorted(set(blocks) - set(ROWS)):
        raise argparse.ArgumentTypeError(f"no such blocks: {unknown}; there are {list(ROWS)}")
    return blocks


if __name__ == "__main__":
    main()
