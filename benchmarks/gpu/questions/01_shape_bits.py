"""Do all shapes of products and tiles of attention that passes can reach give a row the same bits?

    python -m benchmarks.gpu.questions.01_shape_bits [--device cpu]

The trials of a model's load, on random weights of the shapes of known models, and the seconds that they take.

Expected on Hopper and Ampere: yes, nothing is ruled out: all instructions add 16 inputs at a time to a sum in float32.
On an H200 that was so for the sizes of blocks that were tried until now, and for no shape of 257 to 1024 rows.

If a shape is ruled out: outputs stay right, and prompts of some lengths are slower. Compare the time of the shape that
is left (benchmarks.gpu.product_shapes), and drop the other one from `kernels/product.py` if it is not much faster. If
tiles of 16 queries are ruled out: drop them. On Blackwell an answer is wanted for each of its generations.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import torch

from benchmarks.gpu.answer import print_answer
from benchmarks.gpu.figure_log import Figures

if TYPE_CHECKING:
    from draftwire_core.engine.model.cuda.kernels.product import Gate


class Widths(NamedTuple):
    """The shape of a model's layers."""

    hidden: int
    heads: int
    kv_heads: int
    dim: int
    inner: int
    vocabulary: int


MODELS = {
    "Llama 3.1 8B": Widths(4096, 32, 8, 128, 14_336, 128_256),
    "Llama 3.2 1B": Widths(2048, 32, 8, 64, 8192, 128_256),
    "Qwen3 4B": Widths(2560, 32, 8, 128, 9728, 151_936),
    "Qwen3 0.6B": Widths(1024, 16, 8, 128, 3072, 151_936),
}
TOY = {"toy": Widths(32, 4, 2, 16, 48, 40)}
PACKED = ("fp8", "int8", "int4")


def products(widths: Widths) -> list[tuple[int, int, Gate | None]]:
    """Outputs, inputs and gates of a layer's products and of the output head."""
    attended = widths.heads * widths.dim
    return [
        (attended + 2 * widths.kv_heads * widths.dim, widths.hidden, None),
        (widths.hidden, attended, None),
        (2 * widths.inner, widths.hidden, "silu"),
        (widths.hidden, widths.inner, None),
        (widths.vocabulary, widths.hidden, None),
    ]


def find(device: torch.device) -> Figures:
    """Shapes and tiles that the trials rule out, by model."""
    if device.type == "cpu":
        from tests.harness.kernels.prepared_interpreter import prepare_interpreter

        prepare_interpreter()
    from draftwire_core.engine.model.cuda.kernels.attention_trial import AttentionKind, equal_tiles, tiles_of
    from draftwire_core.engine.model.cuda.kernels.product_trial import try_product
    from draftwire_core.engine.model.cuda.weights.device_weight import Code, DeviceWeight

    def packed(kind: Code, outputs: int, inputs: int) -> DeviceWeight:
        group = 32
        codes = torch.randint(16 if kind == "int4" else 120, (outputs, inputs), device=device).to(torch.uint8)
        scales = 0.01 + torch.rand(outputs, -(-inputs // group), device=device)
        return DeviceWeight.of(kind, codes, scales, 8 if kind == "int4" else 0, group=group)

    figures: dict[str, object] = {}
    ruled_out: list[str] = []
    for name, widths in (TOY if device.type == "cpu" else MODELS).items():
        started = time.perf_counter()
        for outputs, inputs, gate in products(widths):
            weight = torch.randn(outputs, inputs, dtype=torch.bfloat16, device=device)
            ruled_out += [f"{name}: {each}" for each in try_product(weight, gate).lost]
        kind = AttentionKind(widths.heads, widths.kv_heads, widths.dim, widths.dim**-0.5, None, None)
        for each in (kind, kind._replace(window=100, softcap=50.0)):
            sizes = equal_tiles(each, torch.bfloat16, device)
            lost = set(tiles_of(widths.heads // widths.kv_heads)) - set(sizes)
            ruled_out += [f"{name}: attention in tiles of {size} queries" for size in lost]
        figures[f"{name}: seconds"] = round(time.perf_counter() - started, 2)
    first = next(iter((TOY if device.type == "cpu" else MODELS).values()))
    for code in PACKED:
        outputs, inputs, gate = products(first)[2]
        ruled_out += [f"{code}: {each}" for each in try_product(packed(code, outputs, inputs), gate).lost]
    return {"as expected": not ruled_out, "ruled out": ruled_out, **figures}


if __name__ == "__main__":
    print_answer(__doc__, find)
