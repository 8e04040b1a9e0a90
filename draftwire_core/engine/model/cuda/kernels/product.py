"""Products of rows and a weight matrix, whose sums go along the inputs in one order for any number of rows.

One program adds up all inputs of an output, and a GPU adds them to the sum 16 at a time, whatever the size of a block.
Residuals, biases and the gates of feed-forward parts are applied to the sums in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwire_core.engine.device.gpu import processors, shared_bytes
from draftwire_core.engine.model.cuda.kernels.numbers import multiplied, narrowed, widened

Gate = Literal["silu", "gelu"]
"""Activation of a gated feed-forward part: SiLU, or GELU by its tanh approximation."""
ROW_BLOCKS = (16, 64, 128)
"""Rows of a block, by the number of rows: the first that holds them, or the last."""
MOST_ROWS = 1024
"""Rows of a pass. Products of more are cut as products of these, so that a trial knows all cuts; see `try_product`."""
_LEAST_INNER = 16
GATES = {None: 0, "silu": 1, "gelu": 2}
"""The kernels' numbers for gates."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A way to cut a product into programs, and a program's loads into stages."""

    outputs: int
    inner: int
    stages: int
    warps: int


# Measured on an H200 at the shapes of Llama 3.1 8B (benchmarks/results/product_shapes).
_NARROW = Shape(16, 128, 8, 2)
_WIDE = Shape(64, 128, 3, 2)
"""Of 16 rows, where memory alone counts: many loads under way for each of few programs, or fewer for many."""
_ALONE = {
    64: (Shape(64, 128, 5, 4), Shape(32, 128, 6, 4)),
    128: (Shape(256, 64, 3, 8), Shape(128, 64, 4, 8), Shape(64, 128, 4, 8), Shape(32, 128, 4, 8)),
}
"""By rows of a block, the most outputs first; for at most one program a processor."""
_SHARING = {
    64: (Shape(64, 64, 4, 4), Shape(32, 128, 4, 4)),
    128: (Shape(256, 64, 3, 8), Shape(128, 64, 4, 8), Shape(64, 64, 3, 8)),
}
"""For several programs a processor."""
_TOLERATED = 1.125
"""Work of the busiest processor, relative to the least possible, that wider programs may have."""
_MOST_SUMS = 128 * 256
"""Numbers that a program adds up; gated outputs are two of them each."""


def shape_of(outputs: int, rows: int, block: int, gated: bool, device: torch.device) -> Shape:
    """Returns the shape with the widest programs, of those that leave the busiest processor little more to do than it
    must.

    block: rows of a block. gated: whether each output is made of two.
    """
    rows = min(rows, MOST_ROWS)
    if block == ROW_BLOCKS[0]:
        return _WIDE if -(-rows // block) * -(-outputs // _WIDE.outputs) >= processors(device) else _NARROW

    def most_turns(shape: Shape) -> int:
        return -(-(-(-rows // block) * -(-outputs // shape.outputs)) // processors(device))

    found = [
        shape
        for shapes, alone in ((_ALONE, True), (_SHARING, False))
        for shape in shapes[block]
        if (most_turns(shape) == 1) == alone and block * shape.outputs * (1 + gated) <= _MOST_SUMS
    ]
    least = min(most_turns(shape) * shape.outputs for shape in found)
    return max(
        (shape for shape in found if most_turns(shape) * shape.outputs <= _TOLERATED * least),
        key=lambda shape: shape.outputs,
    )


class Cuts(NamedTuple):
    """The ways to cut a product into programs that may be used; see `try_product`."""

    row_blocks: tuple[int, ...] = ROW_BLOCKS
    """Rows of blocks to choose from."""
    largest: Shape | None = None
    """The shape of the largest blocks; by default what `shape_of` finds."""

    def cut(self, rows: int, outputs: int, gated: bool, device: torch.device) -> tuple[int, Shape]:
        """Returns the rows of a block and the shape for a product; see `shape_of`."""
        block = next((each for each in self.row_blocks if each >= rows), self.row_blocks[-1])
        if self.largest is not None and block == self.row_blocks[-1]:
            return block, self.largest
        return block, shape_of(outputs, rows, block, gated, device)


ALL_CUTS = Cuts()


def stages_of(shape: Shape, block: int, gated: bool, item_bytes: int, device: torch.device) -> int:
    """Stages of a program's loads that fit into shared memory. item_bytes: of a number."""
    stage = (block + shape.outputs * (1 + gated)) * shape.inner * item_bytes
    return max(1, min(shape.stages, shared_bytes(device) // stage))


@triton.jit
def activated(gate, up, GATE: tl.constexpr):
    """The gated numbers, float32."""
    if GATE == 1:
        return gate / (1.0 + tl.exp(-gate)) * up
    else:
        # 1 + tanh(x) = 2 / (1 + exp(-2x))
        cubic = gate * (1.0 + 0.044715 * gate * gate)
        return gate / (1.0 + tl.exp(-1.5957691216057308 * cubic)) * up


@triton.jit(do_not_specialize=["rows"])  # compiled once, not for each number of rows
def product_kernel(
    inputs,
    weight,
    bias,
    residual,
    out,
    rows,
    outputs,
    inner,
    input_row,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INNER: tl.constexpr,
    WHOLE: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    GATE: tl.constexpr,
):
    """One program a block of rows and outputs, rows first, so that programs that run together share weights."""
    row_blocks = tl.cdiv(rows, ROWS)
    first_row = (tl.program_id(0) % row_blocks * ROWS).to(tl.int64)
    first_output = (tl.program_id(0) // row_blocks * OUTPUTS).to(tl.int64)
    row, output, element = tl.arange(0, ROWS), tl.arange(0, OUTPUTS), tl.arange(0, INNER)
    row_real, output_real = row < rows - first_row, output < outputs - first_output
    left_at = inputs + first_row * input_row + (row[:, None] * input_row + element[None, :])
    right_at = weight + first_output * inner + (output[:, None] * inner + element[None, :])
    summed = tl.zeros([ROWS, OUTPUTS], tl.float32)
    if GATE != 0:
        raised = tl.zeros([ROWS, OUTPUTS], tl.float32)
        up_at = right_at + outputs.to(tl.int64) * inner
    for begin in range(0, inner, INNER):
        left_real, right_real = row_real[:, None], output_real[:, None]
        if not WHOLE:
            inside = element < inner - begin
            left_real, right_real = left_real & inside[None, :], right_real & inside[None, :]
        left = tl.load(left_at + begin, mask=left_real, other=0.0)
        summed = multiplied(left, tl.trans(tl.load(right_at + begin, mask=right_real, other=0.0)), summed)
        if GATE != 0:
            raised = multiplied(left, tl.trans(tl.load(up_at + begin, mask=right_real, other=0.0)), raised)
    if BIASED:
        summed += widened(tl.load(bias + first_output + output, mask=output_real, other=0.0))[None, :]
        if GATE != 0:
            raised += widened(tl.load(bias + outputs + first_output + output, mask=output_real, other=0.0))[None, :]
    if GATE != 0:
        summed = activated(summed, raised, GATE)
    real = row_real[:, None] & output_real[None, :]
    first = first_row * outputs + first_output
    at = row[:, None] * outputs + output[None, :]
    if ADDED:
        summed += widened(tl.load(residual + first + at, mask=real, other=0.0))
    tl.store(out + first + at, narrowed(summed, out.dtype.element_ty), mask=real)


def multiply(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    add_to: Tensor | None = None,
    gate: Gate | None = None,
    dtype: torch.dtype | None = None,
    cuts: Cuts = ALL_CUTS,
) -> Tensor:
    """The product of rows [rows, inner] and a weight [outputs, inner], plus a bias [outputs].

    add_to: rows [rows, outputs], of any dtype, to which it is added, in place. gate: the first half of the outputs is
    gated by this activation, and multiplied by the second half; outputs are then half as many. dtype: of the result, by
    default that of the inputs. cuts: to choose from.
    """
    rows, inner = inputs.shape
    outputs = len(weight) if gate is None else len(weight) // 2
    out = torch.empty(rows, outputs, dtype=dtype or inputs.dtype, device=inputs.device) if add_to is None else add_to
    gated = gate is not None
    block, shape = cuts.cut(rows, outputs, gated, inputs.device)
    block_inner = min(shape.inner, max(_LEAST_INNER, triton.next_power_of_2(inner)))
    options: dict[str, Any] = {
        "num_warps": shape.warps,
        "num_stages": stages_of(shape, block, gated, inputs.element_size(), inputs.device),
        "enable_fp_fusion": False,
    }
    product_kernel[-(-rows // block) * -(-outputs // shape.outputs),](
        inputs,
        weight,
        weight if bias is None else bias,
        out,
        out,
        rows,
        outputs,
        inner,
        inputs.stride(0),
        ROWS=block,
        OUTPUTS=shape.outputs,
        INNER=block_inner,
        WHOLE=inner % block_inner == 0,
        BIASED=bias is not None,
        ADDED=add_to is not None,
        GATE=GATES[gate],
        **options,
    )
    return out
