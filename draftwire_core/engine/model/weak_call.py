"""Calls of a method that do not keep its object alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar
from weakref import WeakMethod

P = ParamSpec("P")
T = TypeVar("T")


def weak_call(method: Callable[P, T]) -> Callable[P, T]:
    """The method without a reference to its object, which owns what calls it: a model that nobody uses any more must
    leave the device at once, not when Python's collector finds the cycle."""
    reference = WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        found = reference()
        assert found is not None, "its object calls it"
        return found(*args, **kwargs)

    return call
