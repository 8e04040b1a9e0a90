"""Measures how fast weights of each type are read: by a product of 1 to 16 rows, and by a whole plain step.

    python -m benchmarks.speed.weight_products [--types bf16,q8_0,q4_k] [--rows 1,2,4,8,16] [--threads 1] [--runs 15]
        [--steps bf16,q8_0] [--kernels avx2] [--reading "in order"] [--json]

Products are of random weights of 8192 outputs and 2048 inputs, as many as make 200 MB, so that each is read from
memory. A plain step is one row of the bundled target, inflated (models/inflate.py), after 40 positions. Speed is the
bytes of packed weights over the time. The share relates it to the fastest of several ways to read memory with as many
threads, the products of the same run among them. Other work on the machine lowers all of these.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch

from benchmarks.harness.inflated_models import inflated
from benchmarks.harness.pair_options import counts
from benchmarks.harness.report import add_report_options, print_report
from benchmarks.speed.step_share import batch_of
from draftwire_core.engine.device.choices import Kernels
from draftwire_core.engine.kernels.library import kernels_in_use, use_kernels
from draftwire_core.engine.kernels.products.block_reading import (
    BlockReading,
    block_reading,
    choose_block_reading,
    use_block_reading,
)
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.kernels.products.gemm import CompiledGemm
from draftwire_core.engine.kernels.products.gemm_blocks import FORMATS, BlockType, CompiledBlockGemm
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_tools.spread import Spread
from tests.harness.checkout import MODELS
from tests.harness.engine.random_blocks import random_blocks

_OUTPUTS, _INPUTS = 8192, 2048
_BYTES = 200_000_000
_READ = 256 << 20
_STREAMS = 4
_CONTEXT = 40

Step = Literal["bf16", "q8_0", "q4_0"]
"""Weights that a checkpoint gets at load."""


def names(text: str) -> list[str]:
    """Reads names separated by commas."""
    return text.split(",")


def seconds(work: Callable[[], object]) -> float:
    """Returns how long `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def stored_bytes(products: Sequence[CompiledProduct]) -> int:
    """Returns the size of packed weights."""
    return sum(product.stored.numel() * product.stored.element_size() for product in products)


def products_of(kind: str) -> list[CompiledProduct]:
    """Returns products of one of the types that `--types` allows, together too large for a cache."""
    found: list[CompiledProduct] = []
    plain = torch.randn(_OUTPUTS, _INPUTS).to(torch.bfloat16)
    blocks: BlockType | None = next((each for each in FORMATS if each == kind), None)
    raw = plain if blocks is None else random_blocks(blocks, _OUTPUTS, _INPUTS)
    while stored_bytes(found) < _BYTES:
        found.append(CompiledGemm(plain) if blocks is None else CompiledBlockGemm(blocks, raw))
    return found


class Readers:
    """Several ways of reading a large buffer, to find out how fast this machine reads memory."""

    def __init__(self) -> None:
        self._words = torch.zeros(_READ // 8, dtype=torch.int64)
        self._words.random_()

    def fastest(self) -> float:
        """Returns the bytes per second of the fastest way."""
        return _READ / min(seconds(self._sum), seconds(self._largest), seconds(self._sum_of_streams))

    def _sum(self) -> None:
        self._words.sum()

    def _largest(self) -> None:
        self._words.view(torch.int32).amax()

    def _sum_of_streams(self) -> None:
        self._words.view(_STREAMS, -1).sum(0)


class PlainStep:
    """A step of one row of a model."""

    def __init__(self, weights: Step, millions: float):
        source = str(inflated(MODELS / "target", millions))
        self._model = PackedModel.load(
            source, slots=256, dtype="bfloat16", weights="checkpoint" if weights == "bf16" else weights
        )
        self._batch = batch_of(self._model, 1, _CONTEXT)
        parts = {id(each): each for each in self._model.model.modules() if isinstance(each, CompiledProduct)}
        self.size = stored_bytes(list(parts.values()))
        """Bytes of all weights that it multiplies."""

    def run(self) -> None:
        """Runs it."""
        self._model.forward(self._batch)


@torch.inference_mode()
def main() -> None:
    """Measures and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", type=names, default=["bf16", *FORMATS])
    parser.add_argument("--rows", type=counts, default=[1, 2, 4, 8, 16])
    parser.add_argument("--steps", type=names, default=list(get_args(Step)), help="weights of the measured plain steps")
    parser.add_argument("--target-millions", type=float, default=400.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kernels", choices=get_args(Kernels), default="auto", help="those of older processors, too")
    parser.add_argument("--reading", choices=get_args(BlockReading), help="of weights in blocks; by default the faster")
    parser.add_argument("--runs", type=int, default=15)
    add_report_options(parser)
    options = parser.parse_args()
    if unknown := {*options.types} - {"bf16", *FORMATS} | {*options.steps} - {*get_args(Step), ""}:
        parser.error(f"unknown types of weights: {', '.join(sorted(unknown))}")
    use_kernels(options.kernels)
    torch.set_num_threads(options.threads)
    if options.reading is not None:
        use_block_reading(options.reading)
    readers = Readers()
    read: list[float] = []
    figures: dict[str, object] = {"threads": options.threads, "kernels": kernels_in_use()}
    speeds: dict[str, list[float]] = {}
    for kind in options.types:
        products = products_of(kind)
        if products[0].in_blocks and options.reading is None:
            choose_block_reading(products)
        size = stored_bytes(products)
        times: dict[int, list[float]] = {rows: [] for rows in options.rows}
        for run in range(options.runs + 1):
            for rows in options.rows:
                given = torch.randn(rows, _INPUTS).to(torch.bfloat16)
                took = seconds(lambda given=given, products=products: [product(given) for product in products])
                if run:  # the first one warms up
                    times[rows].append(took)
            read.append(readers.fastest())
        one = times[options.rows[0]]
        speeds[f"{kind}, product of {options.rows[0]} row"] = [size / each for each in one]
        for rows in options.rows[1:]:
            figures[f"{kind}, {rows} rows / {options.rows[0]} row"] = Spread.ratio(times[rows], one)
    for weights in filter(None, options.steps):
        step = PlainStep(weights, options.target_millions)
        step.run()
        speeds[f"{weights}, plain step"] = found = []
        for _ in range(options.runs):
            found.append(step.size / seconds(step.run))
            read.append(readers.fastest())
    most = max(*read, *(max(each) for each in speeds.values()))
    figures["read bandwidth, GB/s"] = most / 1e9
    for name, found in speeds.items():
        figures[f"{name}, GB/s"] = Spread.of([each / 1e9 for each in found])
        figures[f"{name}, share of the read bandwidth"] = Spread.of([each / most for each in found])
    figures["weights in blocks are read"] = block_reading()
    kernels = None if options.kernels == "auto" else f"{options.kernels} kernels"
    if forced := ", ".join(filter(None, (kernels, options.reading))):  # such figures have names of their own
        figures = {f"{forced}: {name}": value for name, value in figures.items()}
    print_report("weight products", figures, options)


if __name__ == "__main__":
    main()
