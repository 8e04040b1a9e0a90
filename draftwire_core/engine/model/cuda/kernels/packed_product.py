"""Products of rows and a weight of 4 or 8 bits, which is unpacked as it is multiplied.

Values are a scale times an integer, less a zero point, or an 8-bit float. The factor after the scale is exact in the
rows' dtype. A block of inputs has one scale for an output, which multiplies the block's sum; so nothing is rounded but
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
from draftwire_core.engine.model.cuda.weights.device_weight import DeviceWeight

# Measured on an H200, at the shapes of Llama 3.1 8B (benchmarks/results/product_shapes).
_SHAPES = {16: (32, 5, 4), 64: (32, 3, 4), 128: (64, 2, 4)}
"""By rows of a block: outputs, stages and warps."""
_TO_VALUE = tl.constexpr(2.0**120)
"""The factor by which the bits of an e4m3 number, shifted to their places in a float32, are to be multiplied by."""
_POWER = tl.constexpr(2.0**23)
_POWER_BITS = tl.constexpr(0x4B000000)
"""The bits of 2^23 as a float32."""
_FLOAT8, _INT8, _INT4 = range(3)
_CODES = {"fp8": _FLOAT8, "int8": _INT8, "int4": _INT4}


@triton.jit
def factors_of(codes, zero, CODE: tl.constexpr, NATIVE: tl.constexpr, dtype: tl.constexpr):
    """Factors of the scales, in `dtype`. codes: uint8 [outputs, inputs], of 4 bits the low ones; zero: float32
    [outputs]. NATIVE: whether the GPU converts e4m3 numbers."""
    if CODE == 0:
        if NATIVE:
            numbers = codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)
        else:
            bits = codes.to(tl.uint32)
            numbers = (((bits & 0x80) << 24) | ((bits & 0x7F) << 20)).to(tl.float32, bitcast=True) * _TO_VALUE
    else:
        # An integer as the last bits of 2^23 is a float without a conversion, of which a GPU does few at once.
        numbers = (codes.to(tl.uint32) | _POWER_BITS).to(tl.float32, bitcast=True) - (zero[:, None] + _POWER)
    return narrowed(numbers, dtype)


@triton.jit
def block_sum(left, later, codes, scale, zero, nothing, CODE: tl.constexpr, NATIVE: tl.constexpr):
    """The product of a block, float32 [rows, outputs]. left, later: the rows' elements, of 4-bit codes those of the low
    and of the high bits."""
    if CODE == 2:
        summed = multiplied(left, tl.trans(factors_of(codes & 15, zero, CODE, NATIVE, left.dtype)), nothing)
        summed = multiplied(later, tl.trans(factors_of(codes >> 4, zero, CODE, NATIVE, left.dtype)), summed)
    else:
        summed = multiplied(left, tl.trans(factors_of(codes, zero, CODE, NATIVE, left.dtype)), nothing)
    return summed * scale[None, :]


@triton.jit(do_not_specialize=["rows"])  # compiled once, not for each number of rows
def packed_product_kernel(
    inputs,
    codes,
    scales,
    zeros,
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
    CODE: tl.constexpr,
    ZERO: tl.constexpr,
    BIASED: tl.constexpr,
    ADDED: tl.constexpr,
    GATE: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """One program a block of rows and outputs, rows first, so that programs that run together share weights."""
    WIDE: tl.constexpr = INNER // 2 if CODE == 2 else INNER
    BYTES: tl.constexpr = WIDE
    row_blocks = tl.cdiv(rows, ROWS)
    first_row = (tl.program_id(0) % row_blocks * ROWS).to(tl.int64)
    first_output = (tl.program_id(0) // row_blocks * OUTPUTS).to(tl.int64)
    row, output, element = tl.arange(0, ROWS), tl.arange(0, OUTPUTS), tl.arange(0, WIDE)
    row_real, output_real = row < rows - first_row, output < outputs - first_output
    left_at = inputs + first_row * input_row + (row[:, None] * input_row + element[None, :])
    blocks = inner // INNER
    groups = tl.cdiv(inner, group)
    codes_at = codes + first_output * (blocks * BYTES) + (output[:, None] * (blocks * BYTES) + element[None, :])
    scale_at = first_output * groups + output * groups
    up_codes = outputs.to(tl.int64) * (blocks * BYTES)
    up_scale = outputs.to(tl.int64) * groups
    nothing = tl.zeros([ROWS, OUTPUTS], tl.float32)
    zero = tl.full([OUTPUTS], ZERO, tl.float32)
    summed = tl.zeros([ROWS, OUTPUTS], tl.float32)
    if GATE != 0:
        raised = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for block in range(0, blocks):
        begin = block * INNER
        of_group = scale_at + begin // group
        left = tl.load(left_at + begin, mask=row_real[:, None], other=0.0)
        later = left
        if CODE == 2:
            later = tl.load(left_at + begin + WIDE, mask=row_real[:, None], other=0.0)
        code = tl.load(codes_at + block * BYTES, mask=output_real[:, None], other=0)
        scale = widened(tl.load(scales + of_group, mask=output_real, other=0.0))
        if ZERO < 0:
            zero = tl.load(zeros + of_group, mask=output_real, other=0).to(tl.float32)
        summed += block_sum(left, later, code, scale, zero, nothing, CODE, NATIVE)
        if GATE != 0:
            code = tl.load(codes_at + up_codes + block * BYTES, mask=output_real[:, None], other=0)
            scale = widened(tl.load(scales + up_scale + of_group, mask=output_real, other=0.0))
            if ZERO < 0:
                zero = tl.load(zeros + up_scale + of_group, mask=output_real, other=0).to(tl.float32)
            raised += block_sum(left, later, code, scale, zero, nothing, CODE, NATIVE)
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
    options: dict[str, Any] = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": False}
    packed_product_kernel[blocks * -(-outputs // block_outputs),](
        inputs,
        weight.codes,
        weight.scales,
        weight.zeros if isinstance(weight.zeros, Tensor) else weight.codes,
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
        CODE=_CODES[weight.kind],
        ZERO=-1 if isinstance(weight.zeros, Tensor) else weight.zeros,
        BIASED=bias is not None,
        ADDED=add_to is not None,
        GATE=GATES[gate],
        NATIVE=native_floats(inputs.device),
        **options,
    )
    return out
