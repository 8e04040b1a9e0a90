"""Parts of a sequence, ranges of positions whose sums one program computes: short ones first, then long ones.

A short context is then cut into enough parts to occupy a GPU, and a long one leaves few sums to add up. Where a part
begins depends on its number alone, so a row's sums have one order for any context.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

SHORT, LONG = 256, 512
"""Positions of a part."""
LONG_FROM = 2048
"""Position at which long ones begin."""
_MOST = 1 << 24
"""Positions that there may be, which is more than any model has."""
_BEGINS = np.concatenate([np.arange(0, LONG_FROM, SHORT), np.arange(LONG_FROM, _MOST + 1, LONG)])
"""First position of each part."""
_PARTS = np.searchsorted(_BEGINS, np.arange(0, _MOST, SHORT), side="right") - 1
"""The part of every SHORT positions. Tables, since these are looked up several times in each step."""
_COUNTS = np.concatenate([[0], _PARTS + 1])

Integer = TypeVar("Integer", int, np.ndarray)


def part_of(position: Integer) -> Integer:
    """The part that a position belongs to."""
    return _found(_PARTS, position // SHORT)


def begin_of(part: Integer) -> Integer:
    """The first position of a part."""
    return _found(_BEGINS, part)


def part_count(positions: Integer) -> Integer:
    """The number of parts that so many positions reach into."""
    return _found(_COUNTS, -(-positions // SHORT))


def _found(table: np.ndarray, at: Integer) -> Integer:
    if isinstance(at, int):
        return int(table[at])
    found: np.ndarray = table[at]
    return found
