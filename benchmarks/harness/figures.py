"""Figures of results: their goals, their text in a table, and matching by patterns."""

from __future__ import annotations

import fnmatch
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Value = TypeVar("Value")
_COMPARED: Mapping[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge, "=": operator.eq}
_SAID = {"<=": "at most ", ">=": "at least ", "=": ""}


@dataclass(frozen=True)
class Goal:
    """A bound on a figure."""

    compare: str
    """`<=`, `>=` or `=`."""
    bound: float

    @classmethod
    def read(cls, text: str) -> Goal:
        """Reads a goal such as `>= 0.97`. Raises KeyError for another comparison, ValueError without a number."""
        compare, _, bound = text.partition(" ")
        if compare not in _COMPARED:
            raise KeyError(compare)
        return cls(compare, float(bound))

    def reached(self, value: object) -> bool:
        """Whether a figure, or the median of a spread, is within the bound. Raises TypeError if it is not a number."""
        return _COMPARED[self.compare](middle(value), self.bound)

    def worst(self, values: Sequence[object]) -> object:
        """Returns the figure that is furthest on the wrong side. Raises ValueError if there is none."""
        return (min if self.compare == ">=" else max)(values, key=middle)

    def __str__(self) -> str:
        return f"{_SAID[self.compare]}{self.bound:g}"


def middle(value: object) -> float:
    """Returns a figure as one number: the median of a spread. Raises TypeError if it is not a number."""
    if isinstance(value, Mapping):
        value = value["median"]
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} has no goal, as it is no number")
    return float(value)


def _number(value: float, apart: Sequence[float]) -> str:
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) >= 10000 else f"{value:.0f}"
    digits = 3
    while digits < 6 and float(f"{value:.{digits}g}") in apart and value not in apart:  # 1.0006 is not 1
        digits += 1
    return f"{value:.{digits}g}"


def cell(value: object, goal: Goal | None = None) -> str:
    """Returns a figure as a table shows it. goal: is not met by rounding alone."""
    apart = (1.0,) if goal is None else (1.0, goal.bound)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(value, apart)
    if isinstance(value, Mapping) and "median" in value:
        spread = "" if value["low"] is None else f"{_number(value['low'], apart)} to {_number(value['high'], apart)}"
        return spread if value["median"] is None else f"{_number(value['median'], apart)} ({spread})"
    if isinstance(value, Mapping):
        return "; ".join(f"{name.replace('_', ' ')} {cell(each)}" for name, each in value.items()) or "none"
    return str(value)


def matching(figures: Mapping[str, Value], patterns: Sequence[str]) -> dict[str, Value]:
    """Returns the figures whose names match one of the patterns."""
    return {name: value for name, value in figures.items() if any(fnmatch.fnmatchcase(name, each) for each in patterns)}
