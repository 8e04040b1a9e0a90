"""Conversions and products of numbers, with the same roundings on GPUs and in Triton's interpreter.

The interpreter multiplies bfloat16 numbers as if their bits were integers, and cuts off what does not fit into them.
The sums of its products have an order that depends on sizes; here they go along the inner dimension.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Whether kernels run in Triton's interpreter, on a CPU."""


@triton.jit
def widened(numbers):
    """The numbers in float32, which is exact."""
    if INTERPRETED and numbers.dtype == tl.bfloat16:
        return (numbers.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        return numbers.to(tl.float32)


@triton.jit
def narrowed(numbers, dtype: tl.constexpr):
    """The float32 numbers in `dtype`, to the nearest, of two to the even one."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = numbers.to(tl.uint32, bitcast=True)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.uint16)
        return tl.where(numbers == numbers, rounded, 0x7FC0).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return numbers.to(dtype)


if INTERPRETED.value:

    def multiplied(left: Any, right: Any, added: Any) -> Any:
        """The product of two matrices plus `added`, float32: sums go along the inner dimension."""
        many, few, summed = widened(left).handle.data, widened(right).handle.data, added.handle.data.copy()
        for inner in range(many.shape[1]):
            summed += many[:, inner, None] * few[inner]
        return tl.tensor(TensorHandle(summed, tl.float32), added.type)

else:

    @triton.jit
    def multiplied(left, right, added):
        """The product of two matrices plus `added`, float32: sums go along the inner dimension, 16 numbers at a
        time."""
        return tl.dot(left, right, added, input_precision="ieee")
