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
import sys
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from benchmarks.gpu.figure_log import FigureLog
from benchmarks.gpu.graph_timing import microseconds
from benchmarks.harness.report import add_report_options
from speculative_engine.model.cuda.kernels.product import Gate, Shape, multiply

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
    """Whether it is added to float32 rows."""


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


def times(product: Product, block: int, rows: int, cuts: list[Shape], device: torch.device) -> dict[str, float]:
    """Microseconds by outputs x inputs x stages x warps."""
    first = weight_of(product, device)
    weights = [first, *(weight_of(product, device) for _ in range(_WEIGHT_BYTES // first.nbytes))]
    if device.type != "cuda":
        weights = weights[:1]
    inputs = torch.randn(rows, product.inputs, dtype=torch.bfloat16, device=device)
    added = torch.zeros(rows, product.outputs, device=device) if product.added else None
    found: dict[str, float] = {}
    for shape in cuts:
        turns = itertools.cycle(weights)

        def run(shape: Shape = shape, turns: Iterator[torch.Tensor] = turns) -> object:
            return multiply(inputs, next(turns), add_to=added, gate=product.gate, row_blocks=(block,), shape=shape)

        taken = microseconds(run, device, max(_LEAST_CALLS, len(weights)))
        found["x".join(map(str, (shape.outputs, shape.inner, shape.stages, shape.warps)))] = round(taken, 2)
    return found


def compile_some(jobs: list[tuple[Product, int, Shape]]) -> None:
    """Runs products once, which leaves their kernels in Triton's cache."""
    for product, block, shape in jobs:
        inputs = torch.zeros(block, product.inputs, dtype=torch.bfloat16, device="cuda")
        added = torch.zeros(block, product.outputs, device="cuda") if product.added else None
        weight = weight_of(product, torch.device("cuda"))
        multiply(inputs, weight, add_to=added, gate=product.gate, row_blocks=(block,), shape=shape)


def main() -> None:
    """Times all of them."""
    options = read_options()
    device = torch.device(options.device)
    cuda = device.type == "cuda"
    if cuda and not torch.cuda.is_available():
        sys.exit("this torch sees no CUDA device; --device cpu tries the code")
    products = PRODUCTS if cuda else TOY
    jobs = [
        (product, block, shape)
        for block in options.blocks
        for product in products
        for shape in itertools.islice(shapes(block, product.gate is not None), None if cuda else 1)
    ]
    if cuda:
        count = os.cpu_count() or 1
        with multiprocessing.get_context("spawn").Pool(count) as pool:
            pool.map(compile_some, [jobs[first :: 4 * count] for first in range(4 * count)], chunksize=1)
    log = FigureLog(options.json)
    with log.saved(options):
        for product, block in itertools.product(products, options.blocks):
            cuts = [shape for each, of_block, shape in jobs if (each, of_block) == (product, block)]
            for rows in ROWS[block]:
                name = f"{product.name}, {rows} rows in blocks of {block}"

                def figures(name: str, *given: object) -> Iterator[dict[str, object]]:
                    yield {f"{name}: microseconds": times(*given)}  # type: ignore[arg-type]

                log.run(name, options.part_seconds, partial(figures, name, product, block, rows, cuts, device))


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
