"""Weights that consist of parts, whose outputs follow each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar


class _HasOutputs(Protocol):
    @property
    def outputs(self) -> int: ...


_Part = TypeVar("_Part", bound=_HasOutputs)


def in_parts(parts: Sequence[_Part], first: int, last: int) -> Iterator[tuple[_Part, int, int]]:
    """The parts that hold the outputs from `first` to `last` - 1, each with the range of its own outputs."""
    for part in parts:
        if first < part.outputs and last > 0:
            yield part, max(first, 0), min(last, part.outputs)
        first, last = first - part.outputs, last - part.outputs
