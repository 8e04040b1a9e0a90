"""Batch-invariant functions of torch, under transformers' code of routers and gates.

Routers and gates are some ten operations, different for each architecture. Their code stays; while it runs, those of
its operations whose bits depend on the number of rows, and those that leave ties open, are replaced.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from draftwire_core.engine.model.linear.row_exact import in_whole_vectors, row_exact_linear

Function = Callable[..., Any]


class RowExactFunctions(TorchFunctionMode):
    """Replaces functions of torch within its context, for tensors on CPUs.

    A row is the part of a tensor at one place of all dimensions but the last.

    - Element-wise functions run in whole vectors. Elements that do not fill one go through scalar code, whose
      exponential differs in the last bit.
    - Products with weights that are not packed have a number of rows that does not change a row's bits.
    - Sums over a row add its elements in turn.
    - Of a row's equal elements, `topk` and `sort` take the first one first.
    """

    def __torch_function__(
        self, func: Function, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls `func`, or the function in its place. torch calls this for every function within the context."""
        return _REPLACED.get(func, func)(*args, **(kwargs or {}))


def use_row_exact_functions(model: nn.Module) -> None:
    """Runs the modules of `model` whose own code calls functions that need it with RowExactFunctions.

    Their classes become subclasses. Modules of torch are left out: activations have modules of their own.
    """
    for module in model.modules():
        kind: Any = type(module)
        if _needs_them(kind):
            module.__class__ = _with_them(kind)


@cache
def _needs_them(kind: Any) -> bool:
    if kind.__module__.startswith(("torch.", "draftwire_core.engine.", "transformers.activations")):
        return False
    functions = [inspect.unwrap(each) for each in vars(kind).values() if inspect.isfunction(each)]
    names = {name for each in functions for name in each.__code__.co_names}
    return not names.isdisjoint(_NAMES)


@cache
def _with_them(kind: Any) -> Any:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with RowExactFunctions():
            return kind.forward(self, *args, **kwargs)

    return type(kind.__name__, (kind,), {"forward": forward, "__doc__": kind.__doc__, "__module__": __name__})


def _elementwise(function: Function) -> Function:
    def call(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        kwargs.pop("inplace", None)  # of activations, whose callers use the result
        return in_whole_vectors(lambda flat: function(flat, *args, **kwargs), input)

    return call


def _linear(input: torch.Tensor, weight: Any, bias: torch.Tensor | None = None) -> torch.Tensor:
    if isinstance(weight, torch.Tensor):
        return row_exact_linear(input, weight, bias)
    return nn.functional.linear(input, weight, bias)  # a PackedWeight


def _bmm(input: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    # Rows times the weights of several groups, each of which has rows of its own.
    return torch.stack([row_exact_linear(rows, weight.t()) for rows, weight in zip(input, mat2, strict=True)])


def _sum(input: torch.Tensor, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> torch.Tensor:
    # The last of the sums up to each element: they are computed one after the other.
    keepdim = kwargs.pop("keepdims", keepdim)
    if dim not in (-1, input.dim() - 1) or not input.is_floating_point() or not input.shape[-1]:
        return torch.sum(input, **({} if dim is None else {"dim": dim, "keepdim": keepdim}), **kwargs)
    last = input.cumsum(-1, **kwargs)[..., -1:]
    return last if keepdim else last.squeeze(-1)


def _norm(input: torch.Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, **kwargs: Any) -> torch.Tensor:
    if p != 1 or kwargs:
        found: torch.Tensor = torch.norm(input, p, dim, keepdim, **kwargs)
        return found
    return _sum(input.abs(), dim, keepdim)


def _sort(input: torch.Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Any:
    return torch.sort(input, dim=dim, descending=descending, stable=True)


def _topk(input: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    # torch's own takes any of equal elements, on some processors another than on others.
    values, indices = torch.sort(input, dim=dim, descending=largest, stable=True)
    return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))


_ELEMENTWISE: tuple[Function, ...] = (
    torch.sigmoid, torch.Tensor.sigmoid, torch.special.expit,
    torch.tanh, torch.Tensor.tanh,
    torch.exp, torch.Tensor.exp, torch.log, torch.Tensor.log, torch.log1p, torch.Tensor.log1p,
    torch.rsqrt, torch.Tensor.rsqrt, torch.sqrt, torch.Tensor.sqrt, torch.erf, torch.Tensor.erf,
    nn.functional.silu, nn.functional.gelu, nn.functional.softplus, nn.functional.logsigmoid,
)  # fmt: skip
_NAMES = {"sigmoid", "silu", "gelu", "softplus", "logsigmoid", "log1p", "topk", "sort", "bmm"}
"""Names in a module's code that show that it needs replaced functions. Others alone change no bit on processors that
were tried, and are in the code of whole models."""
_REPLACED: dict[Function, Function] = {
    **{function: _elementwise(function) for function in _ELEMENTWISE},
    nn.functional.linear: _linear,
    torch.bmm: _bmm,
    torch.Tensor.bmm: _bmm,
    torch.sum: _sum,
    torch.Tensor.sum: _sum,
    torch.norm: _norm,
    torch.Tensor.norm: _norm,
    torch.sort: _sort,
    torch.Tensor.sort: _sort,
    torch.topk: _topk,
    torch.Tensor.topk: _topk,
}
