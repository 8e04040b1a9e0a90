"""The work of a round of attention, on the device."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PlacedWork:
    """The work of a round of attention (`slot_work.py`), int32 tensors on the device."""

    ranges: Tensor
    """The round's first item, and the one after the last, [2]."""
    items: Tensor
    segments: Tensor
    asked: Tensor
    seen: Tensor
    tables: Tensor
    """What segments of slots that were listed by earlier steps refer to."""
    first_place: int
    places: int
    """Places of queries, from `first_place` on."""
    most_items: int
    """Items that there may be; sizes the launch."""
    partials: int
    """Partial sums that there may be."""
