"""Triton's interpreter as tests need it: some times quicker, and with products that do not depend on the processor."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
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
    # Its checks of integers for overflow, which needs larger shapes than tests have, take a quarter of its time.
    interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    interpreter.InterpreterBuilder.create_dot = _dot
    _keep_types()
    _keep_shapes()


def _keep_types() -> None:
    """Keeps the numpy type of each type of Triton's, which it looks up in a new table each time."""
    from triton.language import core
    from triton.runtime import interpreter

    look_up = interpreter._get_np_dtype
    known: dict[str, np.dtype[Any]] = {}

    def numpy_type(found: Any) -> np.dtype[Any]:
        element = found.element_ty if type(found) is core.block_type else found
        if isinstance(element, core.pointer_type):
            return np.dtype(np.uint64)
        if element.name not in known:
            known[element.name] = look_up(element)
        return known[element.name]

    interpreter._get_np_dtype = numpy_type


def _keep_shapes() -> None:
    """Keeps shapes, which it checks and wraps anew for each value of an expression."""
    from triton.language import core

    sizes: dict[int | tuple[int, ...], tuple[Any, int]] = {}
    """Shape and number of elements, by the numbers and by the identity of a shape that was made of them."""
    of_tensors: dict[tuple[int, ...], tuple[Any, Any]] = {}
    made = core.block_type.__init__
    unwrap, equal = core._unwrap_if_constexpr, core.tuple.__eq__
    bare = frozenset((int, float, str, bool, type(None), core.tensor, core.dtype, core.block_type))

    def make_type(self: Any, element: Any, shape: Any) -> None:
        found = sizes.get(id(shape)) if type(shape) is core.tuple else None
        found = found or sizes.get(key := tuple(core._unwrap_shape(shape)))
        if found is None:
            made(self, element, shape)
            del self.__dict__["name"]  # text that is hardly ever read
            sizes[key] = sizes[id(self.shape)] = self.shape, self.numel
        else:
            self.element_ty = element
            self.shape, self.numel = found

    def make_tensor(self: Any, handle: Any, type: Any) -> None:
        shape = tuple(type.shape.values) if type.is_block() else ()
        if shape not in of_tensors:
            of_tensors[shape] = core.constexpr(math.prod(shape)), core.tuple([core.constexpr(each) for each in shape])
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = of_tensors[shape]

    def unwrapped(value: Any) -> Any:
        if type(value) is core.constexpr:
            return value.value
        return value if type(value) in bare else unwrap(value)

    name = cached_property(lambda self: f"<{self.shape}, {self.element_ty}>")
    name.__set_name__(core.block_type, "name")
    core.block_type.__init__, core.block_type.name = make_type, name
    core.tensor.__init__ = make_tensor
    core._unwrap_if_constexpr = unwrapped
    core.tuple.__eq__ = lambda self, other: core.constexpr(True) if self is other else equal(self, other)


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
