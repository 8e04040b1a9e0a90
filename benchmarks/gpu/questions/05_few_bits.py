"""How long do products of one row take by weights of few bits, compared with bfloat16, and are their bits equal?

    python -m benchmarks.gpu.questions.05_few_bits [--device cpu]

The products of a layer of Llama 3.1 8B, by random weights of each type, in a CUDA graph over weights by turns, since a
single one would stay in the second-level cache; and what trials of GGUF's types rule out.

Expected on an H200: nothing is ruled out. bfloat16 takes 16, 16, 58 and 32 microseconds (one projection of queries,
keys and values; one of attention's outputs; gate and up; down), q4_0 took 43, -, 112 and 121 before its conversion was
shortened. Q4_K takes up to a quarter more than q4_0, for a product with ones and two units; Q5_K and Q6_K half more.

If Q4_K takes above twice as long as bfloat16: load four blocks of a superblock at once, 64 bytes of an output instead
of 16. If offsets alone cost above a tenth (q4_1 against q4_0): sum the rows once, in a kernel before the product. If
anything is ruled out: outputs stay right, and its rows are cut as those of a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from itertools import cycle
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu.answer import print_answer
from benchmarks.gpu.figure_log import Figures
from benchmarks.gpu.graph_timing import microseconds
from draftwire_core.engine.kernels.products.gemm_blocks import BlockType
from tests.harness.engine.random_blocks import random_blocks

if TYPE_CHECKING:
    from draftwire_core.engine.model.cuda.weights.device_weight import DeviceWeight

_WEIGHT_BYTES = 400_000_000
"""Bytes of the weights that are multiplied by turns."""
_LEAST_CALLS = 4
_BLOCKS: tuple[BlockType, ...] = ("q8_0", "q4_0", "q4_1", "q5_0", "q4_k", "q5_k", "q6_k")


def weights(outputs: int, inputs: int, device: torch.device) -> Iterator[tuple[str, torch.Tensor | DeviceWeight]]:
    """Yields a random weight of each type, with the type's name."""
    from draftwire_core.engine.model.cuda.weights.device_weight import DeviceWeight
    from draftwire_core.engine.model.cuda.weights.packing import stored_on
    from draftwire_core.engine.model.linear.block_weight import BlockWeight

    yield "bfloat16", torch.randn(outputs, inputs, dtype=torch.bfloat16, device=device)
    for code, most in (("fp8", 120), ("int4", 16)):
        codes = torch.randint(most, (outputs, inputs), device=device).to(torch.uint8)
        scales = torch.rand(outputs, inputs // 128, device=device)
        yield f"{code}, groups of 128", DeviceWeight.of(code, codes, scales, 0, group=128)
    for kind in _BLOCKS:
        yield kind, stored_on(device, BlockWeight(kind, random_blocks(kind, outputs, inputs)))


def find(device: torch.device) -> Figures:
    """Microseconds of each product by each type, and what trials rule out."""
    cuda = device.type == "cuda"
    if not cuda:
        from tests.harness.kernels.prepared_interpreter import prepare_interpreter

        prepare_interpreter()
    from benchmarks.gpu.product_shapes import PRODUCTS, Product
    from draftwire_core.engine.model.cuda.kernel_linear import KernelLinear
    from draftwire_core.engine.model.cuda.kernels.product_trial import try_product

    figures: dict[str, object] = {}
    ruled_out: list[str] = []
    products = PRODUCTS[:4] if cuda else (Product("toy", 40, 256),)
    for product in products:
        for name, weight in weights(product.outputs * (1 if product.gate is None else 2), product.inputs, device):
            if name in _BLOCKS and product is products[0]:  # one, since kernels of prompts take seconds to compile
                ruled_out += [f"{name}: {each}" for each in try_product(weight, product.gate).lost]
            tensor = weight if isinstance(weight, torch.Tensor) else weight.codes
            count = 1 + _WEIGHT_BYTES // tensor.nbytes if cuda else 1
            layers = [KernelLinear(deepcopy(weight), None, product.gate) for _ in range(count)]
            row = torch.randn(1, product.inputs, dtype=torch.bfloat16, device=device)
            turns = cycle(layers)
            taken = microseconds(lambda turns=turns, row=row: next(turns).rows(row), device, max(_LEAST_CALLS, count))
            figures[f"{product.name}: {name}, microseconds"] = round(taken, 1)
    return {"as expected": not ruled_out, "ruled out": ruled_out, **figures}


if __name__ == "__main__":
    print_answer(__doc__, find)
