"""Stalls of streams, and the faults they are attributed to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

AFTERMATH_SECONDS = 1.0
"""Seconds after the end of a fault in which a beginning gap may still be due to it."""


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
    """Groups all gaps, in order of their ends, by the kind of fault that was under way or had just ended; "" is none.

    Faults overlap. A gap is attributed to a verifier fault if there was one, since that alone explains it; otherwise to
    the drafter fault that began last.
    """
    ordered = sorted(gaps, key=lambda gap: gap.end)
    ends = [gap.end for gap in ordered]
    longest = max((gap.end - gap.start for gap in ordered), default=0.0)
    blamed: dict[int, Blame] = {}
    for fault in sorted(
        faults, key=lambda fault: (fault.of_verifier, fault.start)
    ):  # the last one to claim a gap has it
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
    """Returns the percentile of some values; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
