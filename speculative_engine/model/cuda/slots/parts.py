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
SHORTENED = LONG_FROM // SHORT - LONG_FROM // LONG
"""How many more parts there are before that than there would be long ones."""

Integer = TypeVar("Integer", int, np.ndarray)


def part_of(position: Integer) -> Integer:
    """The part that a position belongs to."""
    late = position // LONG + SHORTENED
    if isinstance(position, int):
        return position // SHORT if position < LONG_FROM else late
    return np.where(position < LONG_FROM, position // SHORT, late)


def begin_of(part: Integer) -> Integer:
    """The first position of a part."""
    late = (part - SHORTENED) * LONG
    if isinstance(part, int):
        return part * SHORT if part * SHORT < LONG_FROM else late
    return np.where(part * SHORT < LONG_FROM, part * SHORT, late)


def part_count(positions: Integer) -> Integer:
    """The number of parts that so many positions reach into."""
    return part_of(positions - 1) + 1
