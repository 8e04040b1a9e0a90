"""How what one drafter has is divided among the verifiers that it drafts for: by weight, and nothing is left unused.

Rows of steps are divided by start-time fair queueing (Goyal, Vin, Cheng, "Start-time fair queueing", SIGCOMM 1996), KV
slots by weighted max-min fairness (Bertsekas, Gallager, "Data networks", 6.5.2). Both first among names, by their
weights, and then evenly among the streams of a name, so that a verifier gains nothing by opening more of them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar


class ServedVerifier(NamedTuple):
    """One stream of a verifier."""

    name: str = ""
    weight: float = 1.0
    """Of the name; above 0."""
    stream: int = 0


SOLE = ServedVerifier()
"""Whoever is alone."""

KeyT = TypeVar("KeyT", bound=Hashable)


def shares(verifiers: Collection[ServedVerifier]) -> dict[ServedVerifier, float]:
    """What part of the whole each has where all of these want some; they sum to 1."""
    streams = Counter(each.name for each in verifiers)
    whole = sum({each.name: each.weight for each in verifiers}.values())
    return {each: each.weight / (whole * streams[each.name]) for each in verifiers}


def max_min(wanted: Mapping[ServedVerifier, float], whole: float) -> dict[ServedVerifier, float]:
    """The whole, divided. What somebody does not want is divided among the others in the same way."""
    names: dict[str, dict[ServedVerifier, float]] = {}
    weights: dict[str, float] = {}
    for each, want in wanted.items():
        names.setdefault(each.name, {})[each] = want
        weights[each.name] = each.weight
    parts = _filled({name: sum(streams.values()) for name, streams in names.items()}, weights, whole)
    granted: dict[ServedVerifier, float] = {}
    for name, streams in names.items():
        granted |= _filled(streams, dict.fromkeys(streams, 1.0), parts[name])
    return granted


def _filled(wanted: Mapping[KeyT, float], weights: Mapping[KeyT, float], whole: float) -> dict[KeyT, float]:
    granted: dict[KeyT, float] = {}
    left = sum(weights.values())
    # Whoever wants least by its weight is content first.
    for key in sorted(wanted, key=lambda key: wanted[key] / weights[key]):
        granted[key] = min(wanted[key], whole * min(1.0, weights[key] / left))
        whole -= granted[key]
        left -= weights[key]
    return granted


class _StartTimes(Generic[KeyT]):
    """Start-time fair queueing. Each row starts at a virtual time: the first one of whoever was idle now, a further one
    1 / weight after the one before it. Rows are given in the order of these times."""

    def __init__(self) -> None:
        self.ahead: dict[KeyT, float] = {}
        """When the next row of each starts, from now on; those that start at once are left out."""

    def divide(self, wanted: Mapping[KeyT, int], weights: Mapping[KeyT, float], rows: int) -> dict[KeyT, int]:
        """See FairRows.divide."""
        if sum(wanted.values()) <= rows:
            self.ahead.clear()
            return dict(wanted)
        granted = dict.fromkeys(wanted, 0)
        starts = self.ahead
        queue = [(starts.get(key, 0.0), place, key) for place, key in enumerate(wanted) if wanted[key]]
        heapq.heapify(queue)
        for _ in range(rows):
            start, place, key = queue[0]
            granted[key] += 1
            starts[key] = start + 1 / weights[key]
            if granted[key] < wanted[key]:
                heapq.heapreplace(queue, (starts[key], place, key))
            else:
                heapq.heappop(queue)
        now = queue[0][0]
        self.ahead = {key: start - now for key, start in starts.items() if start > now}
        return granted


class FairRows:
    """Divides the rows of step after step. Over any time in which two verifiers lack rows, each has had them by weight,
    but for one row of each. Who wants nothing for a while saves nothing up."""

    def __init__(self) -> None:
        self._names: _StartTimes[str] = _StartTimes()
        self._streams: dict[str, _StartTimes[ServedVerifier]] = {}

    def divide(self, wanted: Mapping[ServedVerifier, int], rows: int) -> dict[ServedVerifier, int]:
        """How many of a step's rows each gets: never more than it wants, and all of them together as many as there are
        or as are wanted. rows: not negative."""
        names: dict[str, dict[ServedVerifier, int]] = {}
        weights: dict[str, float] = {}
        for each, want in wanted.items():
            names.setdefault(each.name, {})[each] = want
            weights[each.name] = each.weight
        parts = self._names.divide({name: sum(streams.values()) for name, streams in names.items()}, weights, rows)
        granted: dict[ServedVerifier, int] = {}
        queues, self._streams = self._streams, {}
        for name, streams in names.items():
            if len(streams) == 1:
                granted |= dict.fromkeys(streams, parts[name])
                continue
            # Kept from step to step only, so that nothing is left of names that are gone.
            queue = self._streams[name] = queues.get(name) or _StartTimes()
            granted |= queue.divide(streams, dict.fromkeys(streams, 1.0), parts[name])
        return granted
