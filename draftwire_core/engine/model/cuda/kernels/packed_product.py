"""Products of rows and a weight of 4 to 8 bits, which is unpacked as it is multiplied.

Values are a scale times an integer, less a zero point, or a float, and may have an offset. The factor after the
scale is exact in the rows' dtype. A block of inputs, or half a block, has one scale for an output, which multiplies its
sum, and an offset multiplies the sum of the row's elements, which is a product with ones; so nothing is rounded but
float32 sums. They go along the inputs in one order, for any number of rows, as in `product.py`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwire_core.engine.device.gpu import native_floats
from draftwire_core.engine.model.cuda.kernels.numbers import multiplied, narrowed, widened
from draftwire_core.engine.model.cuda.kernels.product import GATES, Gate, activated
from draftwire_core.engine.model.cuda.weights.device_weight import BITS, SUPERBLOCK, DeviceWeight

# Measured on an H200, at the shapes of Llama 3.1 8B (benchmarks/results/product_shapes).
_SHAPES = {16: (32, 5, 4), 64: (32, 3, 4), 128: (64, 2, 4)}
"""By rows of a block: outputs, stages and warps."""
_MOST_WITH_UNITS = 32
"""Outputs of a block whose scales have units; those of more do not fit into registers with the sums of two halves."""
_FLOATS = {"fp8": 8, "fp4": 4}
"""Bits of codes that are floats."""
_E4M3 = tl.constexpr(2.0**120)
"""The factor that makes a number of e4m3 bits, shifted to their places in a float32."""
_E2M1 = tl.constexpr(2.0**126)
"""The same of e2m1 bits."""
_POWER = tl.constexpr(2.0**23)
_POWER_BITS = tl.constexpr(0x4B000000)
"""The bits of 2^23 as a float32."""
_SUPERBLOCK = tl.constexpr(SUPERBLOCK)


@triton.jit
def factors_of(codes, zero, FLOAT: tl.constexpr, NATIVE: tl.constexpr, dtype: tl.constexpr):
    """Factors of the scales, in `dtype`. codes: integers, or the bits of e4m3 or e2m1 numbers, [outputs, inputs]; zero:
    float32 [outputs]. FLOAT: bits of floats, 0 of integers. NATIVE: whether the GPU converts e4m3 numbers."""
    if FLOAT == 4:
        bits = codes.to(tl.uint32)
        numbers = (((bits & 8) << 28) | ((bits & 7) << 22)).to(tl.float32, bitcast=True) * _E2M1
    elif FLOAT == 8:
        if NATIVE:
            numbers = codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)
        else:
            bits = codes.to(tl.uint32)
            numbers = (((bits & 0x80) << 24) | ((bits & 0x7F) << 20)).to(tl.float32, bitcast=True) * _E4M3
    else:
        # An integer as the last bits of 2^23 is a float without a conversion, of which a GPU does few at once.
        numbers = (codes.to(tl.uint32) | _POWER_BITS).to(tl.float32, bitcast=True) - (zero[:, None] + _POWER)
    return narrowed(numbers, dtype)


@triton.jit
def scale_of(scales, units, real, IN_UNITS: tl.constexpr):
    """The scales or offsets of outputs, float32. IN_UNITS: whether they are integers."""
    scale = widened(tl.load(scales, mask=real, other=0))
    if IN_UNITS:
        scale *= widened(tl.load(units, mask=real, other=0))
    return scale


@triton.jit
def block_sum(
    left,
    later,
    added,
    codes,
    scales,
    zeros,
    offsets,
    units,
    first,
    real,
    block,
    inner,
    group,
    nothing,
    INNER: tl.constexpr,
    BITS: tl.constexpr,
    FLOAT: tl.constexpr,
    ZERO: tl.constexpr,
    OFFSET: tl.constexpr,
    IN_UNITS: tl.constexpr,
    PAIRED: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """The product of a block, float32 [rows, outputs]. left, later: the rows' elements, of codes of few bits those of
    the first and of the second half; added: their sums; first: the first output."""
    WIDE: tl.constexpr = left.shape[1]
    BYTES: tl.constexpr = INNER * BITS // 8
    output, element = tl.arange(0, nothing.shape[1]), tl.arange(0, WIDE)
    row_bytes = inner // INNER * BYTES
    codes_at = codes + first * row_bytes + output[:, None] * row_bytes + block * BYTES
    groups = tl.cdiv(inner, group)
    group_at = first * groups + output * groups + block * INNER // group
    superblocks = inner // _SUPERBLOCK
    unit_at = units + (first * superblocks + output * superblocks) * (1 + OFFSET) + block * INNER // _SUPERBLOCK
    code = tl.load(codes_at + (BYTES - WIDE + element[None, :]), mask=real[:, None], other=0)
    scale = scale_of(scales + group_at, unit_at, real, IN_UNITS)
    zero = tl.full([nothing.shape[1]], ZERO, tl.float32)
    if ZERO < 0:
        zero = tl.load(zeros + group_at, mask=real, other=0).to(tl.float32)
    if BITS == 8:
        summed = multiplied(left, tl.trans(factors_of(code, zero, FLOAT, NATIVE, left.dtype)), nothing) * scale[None, :]
    else:
        low, high = code & 15, code >> 4
        if BITS > 4:
            MORE: tl.constexpr = (1 << (BITS - 4)) - 1
            step = (element // 4 * (BITS - 4))[None, :]
            upper = tl.load(codes_at + element[None, :] % 4, mask=real[:, None], other=0) >> step
            low |= (upper & MORE) << 4
            if BITS == 5:
                upper >>= 4
            else:
                upper = tl.load(codes_at + (4 + element[None, :] % 4), mask=real[:, None], other=0) >> step
            high |= (upper & MORE) << 4
        summed = multiplied(left, tl.trans(factors_of(low, zero, FLOAT, NATIVE, left.dtype)), nothing)
        right = tl.trans(factors_of(high, zero, FLOAT, NATIVE, left.dtype))
        if PAIRED:  # halves have scales of their own
            later_scale = scale_of(scales + group_at + 1, unit_at, real, IN_UNITS)
            summed = summed * scale[None, :] + multiplied(later, right, nothing) * later_scale[None, :]
        else:
            summed = multiplied(later, right, summed) * scale[None, :]
    if OFFSET:
        summed += added * scale_of(offsets + group_at, unit_at + superblocks, real, IN_UNITS)[None, :]
    return summed


@triton.jit(do_not_specialize=["rows"])  # compiled once, not for each number of rows
def packed_product_kernel(
    inputs,
    codes,
    scales,
    zeros,
    offsets,
    units,
    bias,
    residual,
    out,
    rows,
    outputs,
    inner,
    input_row,
    group,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INNER: tl.constexpr,
    BITS: tl.constexpr,
    FLOAT: tl.constexpr,
    ZERO: tl.constexpr,
    OFFSET: tl.constexpr,
    IN_UNITS: tl.constexpr,
    PAIRED: tl.constexpr,
    NATIVE: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    GATE: tl.constexpr,
):
    """One program a block of rows and outputs, rows first, so that programs that run together share weights."""
    WIDE: tl.constexpr = INNER if BITS == 8 else INNER // 2
    row_blocks = tl.cdiv(rows, ROWS)
    first_row = (tl.program_id(0) % row_blocks * ROWS).to(tl.int64)
    first_output = (tl.program_id(0) // row_blocks * OUTPUTS).to(tl.int64)
    row, output, element = tl.arange(0, ROWS), tl.arange(0, OUTPUTS), tl.arange(0, WIDE)
    row_real, output_real = row < rows - first_row, output < outputs - first_output
    left_at = inputs + first_row * input_row + (row[:, None] * input_row + element[None, :])
    nothing = tl.zeros([ROWS, OUTPUTS], tl.float32)
    ones = narrowed(tl.full([WIDE, OUTPUTS], 1.0, tl.float32), inputs.dtype.element_ty)
    summed = nothing
    raised = nothing
    for block in range(0, inner // INNER):
        begin = block * INNER
        left = tl.load(left_at + begin, mask=row_real[:, None], other=0.0)
        later = left
        if BITS < 8:
            later = tl.load(left_at + begin + WIDE, mask=row_real[:, None], other=0.0)
        added = nothing
        if OFFSET:
            added = multiplied(left, ones, nothing)
            if BITS < 8:
                added = multiplied(later, ones, added)
        first = first_output
        summed += block_sum(
            left, later, added, codes, scales, zeros, offsets, units, first, output_real, block, inner, group, nothing,
            INNER, BITS, FLOAT, ZERO, OFFSET, IN_UNITS, PAIRED, NATIVE,
        )  # fmt: skip
        if GATE != 0:
            first += outputs
            raised += block_sum(
                left, later, added, codes, scales, zeros, offsets, units, first, output_real, block, inner, group,
                nothing, INNER, BITS, FLOAT, ZERO, OFFSET, IN_UNITS, PAIRED, NATIVE,
            )  # fmt: skip
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


def multiply_packed(
    inputs: Tensor,
    weight: DeviceWeight,
    bias: Tensor | None,
    *,
    add_to: Tensor | None,
    gate: Gate | None,
    dtype: torch.dtype | None,
    row_blocks: tuple[int, ...],
) -> Tensor:
    """The product of rows [rows, inputs], bfloat16 or float16, and a packed weight; see `product.multiply`."""
    rows, inner = inputs.shape
    outputs = weight.outputs if gate is None else weight.outputs // 2
    out = torch.empty(rows, outputs, dtype=dtype or inputs.dtype, device=inputs.device) if add_to is None else add_to
    block = next((each for each in row_blocks if each >= rows), row_blocks[-1])
    blocks = -(-rows // block)
    block_outputs, stages, warps = _SHAPES[block]
    if weight.units is not None:
        block_outputs = min(block_outputs, _MOST_WITH_UNITS)
    options: dict[str, Any] = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": False}
    packed_product_kernel[blocks * -(-outputs // block_outputs),](
        inputs,
        weight.codes,
        weight.scales,
        weight.zeros if isinstance(weight.zeros, Tensor) else weight.codes,
        weight.scales if weight.offsets is None else weight.offsets,
        weight.scales if weight.units is None else weight.units,
        inputs if bias is None else bias,
        out,
        out,
        rows,
        outputs,
        inner,
        inputs.stride(0),
        weight.group,
        ROWS=block,
        OUTPUTS=block_outputs,
        INNER=weight.block,
        BITS=BITS[weight.kind],
        FLOAT=_FLOATS.get(weight.kind, 0),
        ZERO=-1 if isinstance(weight.zeros, Tensor) else weight.zeros,
        OFFSET=weight.offsets is not None,
        IN_UNITS=weight.units is not None,
        PAIRED=weight.group < weight.block,
        NATIVE=native_floats(inputs.device),
        BIASED=bias is not None,
        ADDED=add_to is not None,
        GATE=GATES[gate],
        **options,
    )
    return out
