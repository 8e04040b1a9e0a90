"""How long streams stood still, and what was to blame."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

AFTERMATH_SECONDS = 1.0
"""A gap that begins so soon after a fault has ended may still be due to it."""


class Interval(Protocol):
    """Something with a beginning and an end, in seconds."""

    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...


IntervalT = TypeVar("IntervalT", bound=Interval)


class Blame(NamedTuple):
    """A fault, as far as stalls are concerned."""

    start: float
    end: float
    kind: str
    of_verifier: bool


def gaps_by_kind(gaps: Sequence[IntervalT], faults: Sequence[Blame]) -> dict[str, list[IntervalT]]:
    """All gaps, in order of their ends, by the kind of fault that was under way, or had ended just before; "" is none.

    Faults overlap. A gap is a verifier fault's if there was one, since that alone explains it; otherwise it is that of
    the drafter fault that began last.
    """
    ordered = sorted(gaps, key=lambda gap: gap.end)
    ends = [gap.end for gap in ordered]
    longest = max((gap.end - gap.start for gap in ordered), default=0.0)
    blamed: dict[int, Blame] = {}
    for fault in sorted(faults, key=lambda fault: (fault.of_verifier, fault.start)):  # the last one to claim it has it
        last = fault.end + AFTERMATH_SECONDS
        for index in range(bisect_left(ends, fault.start), len(ordered)):
            if ends[index] > last + longest:
                break
            if ordered[index].start <= last:
                blamed[index] = fault
    by_kind: dict[str, list[IntervalT]] = {}
    for index, gap in enumerate(ordered):
        kind = blamed[index].kind if index in blamed else ""
        by_kind.setdefault(kind, []).append(gap)
    return by_kind


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share of them lies; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
