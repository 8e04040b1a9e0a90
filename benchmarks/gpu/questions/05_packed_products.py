"""Are products with weights of few bits faster than with bfloat16, a layer of Llama 3.1 8B at a time?

    python -m benchmarks.gpu.questions.05_packed_products [--device cpu]

The four products of a layer in CUDA graphs, over weights by turns, since a single one would stay in the second-level
cache. A layer's time is their sum.

Expected on an H200, of 1 row: bfloat16 89 microseconds; the others between 110 and 130, since they were so at 83fe52f3.
Their bytes would allow 45 (fp8, int8) and 25 (int4).

If a kind of 8 bits takes more than bfloat16 at 1 row: the conversion of codes bounds it, and more inputs a load come
next (`packed_product_kernel`). If at 64 rows alone: the shapes of `_SHAPES`. The aims are 1.5 and 2.0 times as fast.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.answer import print_answer
from benchmarks.gpu.figure_log import Figures
from benchmarks.gpu.graph_timing import microseconds

if TYPE_CHECKING:
    from draftwire_core.engine.model.cuda.weights.device_weight import Code, DeviceWeight

PRODUCTS = ((6144, 4096, False), (4096, 4096, False), (28_672, 4096, True), (4096, 14_336, False))
TOY = ((64, 128, False), (64, 128, True))
"""Outputs, inputs, and whether outputs are gated by pairs."""
GROUPS: dict[Code, int] = {"fp8": 128, "int8": 32, "int4": 64}
"""Inputs that share a scale, by kind."""
ROWS, TOY_ROWS = (1, 8, 64), (1,)
_WEIGHT_BYTES = 400_000_000
_LEAST_CALLS = 4


def timed(rows: torch.Tensor, products: Iterator[torch.nn.Module]) -> None:
    """Multiplies rows by the next weight."""
    next(products)(rows)


def find(device: torch.device) -> Figures:
    """Times of a layer's products by kind and number of rows."""
    cuda = device.type == "cuda"
    if not cuda:
        from tests.harness.kernels.prepared_interpreter import prepare_interpreter

        prepare_interpreter()
    from draftwire_core.engine.model.cuda.kernel_linear import KernelLinear
    from draftwire_core.engine.model.cuda.weights.device_weight import DeviceWeight

    def plain(outputs: int, inputs: int) -> torch.Tensor:
        return torch.randn(outputs, inputs, device=device).to(torch.bfloat16)

    def packed(kind: Code, outputs: int, inputs: int) -> DeviceWeight:
        codes = torch.randint(16 if kind == "int4" else 120, (outputs, inputs), device=device).to(torch.uint8)
        scales = 0.01 + torch.rand(outputs, inputs // GROUPS[kind], device=device)
        return DeviceWeight.of(kind, codes, scales, 8 if kind == "int4" else 0, group=GROUPS[kind])

    makers: dict[str, Callable[[int, int], torch.Tensor | DeviceWeight]] = {"bfloat16": plain}
    makers |= {kind: partial(packed, kind) for kind in GROUPS}
    figures: dict[str, object] = {}
    layers: dict[tuple[str, int], float] = {}
    for kind, make in makers.items():
        for outputs, inputs, gated in PRODUCTS if cuda else TOY:
            count = 1 + _WEIGHT_BYTES // (outputs * inputs) if cuda else 1
            products = [KernelLinear(make(outputs, inputs), None, "silu" if gated else None) for _ in range(count)]
            for rows in ROWS if cuda else TOY_ROWS:
                given = torch.randn(rows, inputs, device=device).to(torch.bfloat16)
                taken = microseconds(partial(timed, given, itertools.cycle(products)), device, max(_LEAST_CALLS, count))
                layers[kind, rows] = layers.get((kind, rows), 0.0) + taken
    for (kind, rows), taken in layers.items():
        figures[f"{kind}, {rows} rows: layer, microseconds"] = round(taken, 2)
        if kind != "bfloat16":
            figures[f"{kind}, {rows} rows: bfloat16's time over its own"] = round(layers["bfloat16", rows] / taken, 3)
    return figures


if __name__ == "__main__":
    print_answer(__doc__, find)
