"""Triton's interpreter as tests need it: some times quicker, and with products that do not depend on the processor."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import numpy as np


def prepare_interpreter() -> None:
    """Prepares the interpreter once and for all of this process."""
    import triton.language as tl
    from triton.runtime import interpreter

    prepare = interpreter._patch_lang
    if prepare is _prepared:
        return
    # It prepares the modules that a function sees, anew for each call of each function.
    prepare(FunctionType(prepare_interpreter.__code__, {"tl": tl, "core": tl.core}))
    interpreter._patch_lang = _prepared
    interpreter.InterpreterBuilder.create_dot = _dot


def _prepared(function: object) -> object:
    """Nothing to be done, nor undone."""
    from triton.runtime import interpreter

    return interpreter._LangPatchScope()


def _dot(self: object, a: Any, b: Any, d: Any, input_precision: object, max_num_imprecise_acc: object) -> Any:
    """Returns a @ b + d, summed in float64 and rounded to the type of d.

    numpy's float32 products come from a BLAS. With some of its kernels, those for AVX2 for example, a row's last bits
    depend on the number of rows, unlike those of a GPU's tiles.
    """
    from triton.runtime import interpreter

    left, right = (_wide(each) for each in (a, b))
    return interpreter.TensorHandle((left @ right).astype(d.data.dtype) + d.data, d.dtype.scalar)


def _wide(factor: Any) -> np.ndarray:
    """A factor of a product in float64, or in int64 where it has integers."""
    import triton.language as tl
    from triton.runtime import interpreter

    data = factor.data
    if factor.dtype.is_floating() and factor.dtype.primitive_bitwidth == 8:
        data = interpreter._convert_float(data, factor.dtype, tl.float16, None).view(np.float16)
    return data.astype(np.float64 if factor.dtype.is_floating() else np.int64)
