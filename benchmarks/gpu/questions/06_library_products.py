"""Does cuBLAS give a row the same bits in any batch if rows are padded to one size, and is it faster than our kernels?

    python -m benchmarks.gpu.questions.06_library_products [--device cpu]

The products of a layer of Llama 3.1 8B in bfloat16. cuBLAS gets 16, 64 or 128 rows, zeros among them; row by row its
bits are compared with those of the first row alone, padded likewise, and with those of other sizes.

Expected on an H200: equal bits at one size, since the algorithm is chosen by the shapes; different ones between sizes.
Of 16 rows ours takes 1.0 of cuBLAS's time, of 64 and 128 rows 1.1 to 1.3.

If bits are equal at one size and cuBLAS is more than 1.15 times as fast at 64 or 128: prompts may use it, padded, where
a row's pass is never of another size; targets may not, whose rows move between sizes. If not: the question is closed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.gpu.answer import print_answer
from benchmarks.gpu.figure_log import Figures
from benchmarks.gpu.graph_timing import microseconds

PRODUCTS = {"qkv": (6144, 4096), "o": (4096, 4096), "gate and up": (28_672, 4096), "down": (4096, 14_336)}
TOY = {"toy": (64, 128)}
SIZES, TOY_SIZES = (16, 64, 128), (16, 64)
_WEIGHT_BYTES = 400_000_000
_LEAST_CALLS = 4


def padded(rows: torch.Tensor, size: int) -> torch.Tensor:
    """Rows [n, inputs] with zeros behind them: [size, inputs]."""
    return torch.cat([rows, rows.new_zeros(size - len(rows), rows.shape[1])])


def timed(
    product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], rows: torch.Tensor, weights: Iterator[torch.Tensor]
) -> None:
    """Multiplies rows by the next weight."""
    product(rows, next(weights))


def find(device: torch.device) -> Figures:
    """Equal bits by size of padding, and both times."""
    cuda = device.type == "cuda"
    if not cuda:
        from tests.harness.kernels.prepared_interpreter import prepare_interpreter

        prepare_interpreter()
    from draftwire_core.engine.model.cuda.kernels.product import multiply

    figures: dict[str, object] = {}
    differing: list[str] = []
    between: list[str] = []
    for name, (outputs, inputs) in (PRODUCTS if cuda else TOY).items():
        count = 1 + _WEIGHT_BYTES // (2 * outputs * inputs) if cuda else 1
        weights = [torch.randn(outputs, inputs, device=device).to(torch.bfloat16) for _ in range(count)]
        sizes = SIZES if cuda else TOY_SIZES
        rows = torch.randn(sizes[-1], inputs, device=device).to(torch.bfloat16)
        alone: dict[int, torch.Tensor] = {}
        for size in sizes:
            together = torch.nn.functional.linear(rows[:size], weights[0])
            alone[size] = torch.nn.functional.linear(padded(rows[:1], size), weights[0])[:1]
            each = [torch.nn.functional.linear(padded(rows[at : at + 1], size), weights[0])[:1] for at in range(size)]
            if not torch.equal(torch.cat(each), together):
                differing.append(f"{name}, {size} rows")
            turns: Iterator[torch.Tensor] = itertools.cycle(weights)
            given = rows[:size]
            for whose, product in (("cuBLAS", torch.nn.functional.linear), ("ours", multiply)):
                taken = microseconds(partial(timed, product, given, turns), device, max(_LEAST_CALLS, count))
                figures[f"{name}, {size} rows, {whose}: microseconds"] = round(taken, 2)
        between += [f"{name}, {size} rows" for size in sizes[1:] if not torch.equal(alone[size], alone[sizes[0]])]
    return {"differ at one size": differing, f"differ from {SIZES[0]} rows": between, **figures}


if __name__ == "__main__":
    print_answer(__doc__, find)
