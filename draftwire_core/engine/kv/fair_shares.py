"""Fair division of a drafter's capacity among its verifiers: by weight, with nothing left unused.

Rows of steps are divided by start-time fair queueing (Goyal, Vin, Cheng, "Start-time fair queueing", SIGCOMM 1996), KV
slots by weighted max-min fairness (Bertsekas, Gallager, "Data networks", 6.5.2). Both divide first among names, by
weight, and then evenly among the streams of a name, so a verifier gains nothing by opening more streams.
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
    """Weight of the name; above 0."""
    stream: int = 0


SOLE = ServedVerifier()
"""The only verifier of a drafter that is not shared."""

KeyT = TypeVar("KeyT", bound=Hashable)


def shares(verifiers: Collection[ServedVerifier]) -> dict[ServedVerifier, float]:
    """Returns the share of each verifier while all of them have demand; the shares sum to 1."""
    streams = Counter(each.name for each in verifiers)
    whole = sum({each.name: each.weight for each in verifiers}.values())
    return {each: each.weight / (whole * streams[each.name]) for each in verifiers}


def max_min(wanted: Mapping[ServedVerifier, float], whole: float) -> dict[ServedVerifier, float]:
    """Divides the whole by demand. A share that is not wanted is divided among the others in the same way."""
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
    # The smallest demand relative to weight is satisfied first.
    for key in sorted(wanted, key=lambda key: wanted[key] / weights[key]):
        granted[key] = min(wanted[key], whole * min(1.0, weights[key] / left))
        whole -= granted[key]
        left -= weights[key]
    return granted


class _StartTimes(Generic[KeyT]):
    """Start-time fair queueing: rows are granted in the order of their virtual start times.

    The first row of an idle key starts now; each further row starts 1 / weight after the one before it.
    """

    def __init__(self) -> None:
        self.ahead: dict[KeyT, float] = {}
        """Virtual start of each key's next row, relative to now; keys that may start now are left out."""

    def divide(self, wanted: Mapping[KeyT, int], weights: Mapping[KeyT, float], rows: int) -> dict[KeyT, int]:
        """Grants at most `rows` rows in the order of their start times."""
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
    """Divides the rows of successive steps. Over any time in which two verifiers both lack rows, each receives rows by
    weight, up to one row. A verifier without demand saves nothing up."""

    def __init__(self) -> None:
        self._names: _StartTimes[str] = _StartTimes()
        self._streams: dict[str, _StartTimes[ServedVerifier]] = {}

    def divide(self, wanted: Mapping[ServedVerifier, int], rows: int) -> dict[ServedVerifier, int]:
        """Divides a step's rows: no verifier gets more than it wants, and no row stays unused while one is wanted.

        rows: not negative.
        """
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
            # Only queues of the current step are kept, so that names that are gone leave nothing behind.
            queue = self._streams[name] = queues.get(name) or _StartTimes()
            granted |= queue.divide(streams, dict.fromkeys(streams, 1.0), parts[name])
        return granted
