"""A whole fleet in virtual time: requests arrive, find a verifier, get their tokens, and continue elsewhere if it
fails."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness.simulated_services import VirtualClock
from benchmarks.simulation.fleet.drafter import Drafter
from benchmarks.simulation.fleet.drafting_cell import MAX_STEP_ROWS
from benchmarks.simulation.fleet.faults import Fault
from benchmarks.simulation.fleet.model_pair_times import ModelPairTimes
from benchmarks.simulation.fleet.outcome import Outcome
from benchmarks.simulation.fleet.request import Request
from benchmarks.simulation.fleet.speculation import Speculation
from benchmarks.simulation.fleet.verifier import Verifier

_MOST_STREAMS = 64
"""Most verifiers of a drafter, and most drafters of a verifier: the services' defaults."""


@dataclass(frozen=True)
class Fleet:
    """The services of a fleet and their settings."""

    pair: ModelPairTimes
    speculation: Speculation
    verifiers: int = 1
    drafters: int = 0
    round_trip: float = 0.0
    """Seconds between verifiers and drafters."""
    places: int = 64
    """Requests that run at once on a verifier."""
    max_waiting: int = 256
    """Requests that wait at a verifier, in addition to the running ones."""
    step_rows: int = MAX_STEP_ROWS
    """Most rows of a verifier's step."""
    drafter_places: int = 512
    """Open sequences of a drafter, over all its verifiers; its KV slots limit that."""
    pool: int = 0
    """Drafters of each verifier; 0 for an equal part of all, at least two."""
    notice: float = 0.1
    """Seconds until a failure is noticed."""
    faults: tuple[Fault, ...] = ()
    shared_cores: bool = False
    """Whether all verifiers share one core and all drafters another, as on a machine with two cores."""
    seed: int = 1

    def __post_init__(self) -> None:
        least = {"verifiers": 1, "drafters": 0, "round_trip": 0, "places": 1, "max_waiting": 0, "step_rows": 2}
        for name, smallest in {**least, "drafter_places": 1, "pool": 0, "notice": 0}.items():
            if getattr(self, name) < smallest:
                raise ValueError(f"{name}: {getattr(self, name)} is below {smallest}")
        for fault in self.faults:
            if fault.index >= (self.drafters if "drafter" in fault.kind else self.verifiers) or fault.index < 0:
                raise ValueError(f"faults: {fault.kind}: no service has the index {fault.index}")


class Simulation:
    """One run of a fleet."""

    def __init__(self, fleet: Fleet, outcome: Outcome):
        self.outcome = outcome
        self._fleet = fleet
        self._clock = VirtualClock()
        self._rng = random.Random(f"{fleet.seed} routes")
        self.drafters = [Drafter(index, fleet.pair, fleet.drafter_places) for index in range(fleet.drafters)]
        self.verifiers = [
            Verifier(
                index,
                self._clock,
                fleet.pair,
                fleet.speculation,
                self,
                places=fleet.places,
                max_waiting=fleet.max_waiting,
                step_rows=fleet.step_rows,
                round_trip=fleet.round_trip,
                seed=fleet.seed,
            )
            for index in range(fleet.verifiers)
        ]
        for verifier in self.verifiers:
            verifier.pool = [self.drafters[index] for index in self._pool(verifier.index)]
        self._at: dict[Request, Verifier] = {}
        self._open = 0
        """Number of requests that have arrived and not ended."""
        self._next: list[Request] | None = None
        """Requests of a closed loop that arrive as others end, last first."""
        for fault in fleet.faults:
            self._clock.after(fault.at, lambda fault=fault: self._happen(fault))

    @property
    def seconds(self) -> float:
        """Virtual time that has passed, in seconds."""
        return self._clock.now

    def run(self, requests: Sequence[Request]) -> Outcome:
        """Runs requests, each arriving at its time, until all have ended."""
        for request in requests:
            self._clock.after(request.at, lambda request=request: self._come(request))
        total = len(requests)
        self._clock.run(lambda: self.outcome.finished + self.outcome.refused == total)
        return self.outcome

    def run_closed(self, requests: Sequence[Request], streams: int) -> Outcome:
        """Runs requests in a closed loop: `streams` at a time, the next one when one has ended."""
        self._next = list(reversed(requests))
        for stream in range(min(streams, len(requests))):
            request = self._next.pop()
            request.home = stream % len(self.verifiers)
            self._clock.after(0.0, lambda request=request: self._come(request))
        self._clock.run(lambda: self.outcome.finished + self.outcome.refused == len(requests))
        return self.outcome

    def ended(self, request: Request) -> None:
        """Records the end of a request, as in Owner."""
        self.outcome.finished += 1
        self._gone(request)

    def target_share(self, verifier: Verifier) -> int:
        """Returns the busy verifiers on a verifier's core, as in Owner."""
        return max(1, sum(each.busy for each in self.verifiers)) if self._fleet.shared_cores else 1

    def draft_share(self, drafter: Drafter) -> int:
        """Returns the busy drafters on a drafter's core, as in Owner."""
        return max(1, sum(each.sequences > 0 for each in self.drafters)) if self._fleet.shared_cores else 1

    def _come(self, request: Request) -> None:
        request.at = request.last = self._clock.now
        self.outcome.arrived += 1
        self._open += 1
        self._route(request)

    def _route(self, request: Request) -> None:
        """Routes a request to its home, or to the less busy of two random verifiers, as clients do that know the
        loads."""
        verifier = self._chosen(request)
        if verifier is None:
            if any(each.up for each in self.verifiers):
                self.outcome.refused += 1
                self._gone(request)
            else:  # the request is retried until a verifier is back
                self._clock.after(max(self._fleet.notice, 0.01), lambda: self._route(request))
            return
        self._at[request] = verifier
        verifier.add(request)

    def _chosen(self, request: Request) -> Verifier | None:
        if request.home is not None and self.verifiers[request.home].has_room:
            return self.verifiers[request.home]
        drawn = [self._rng.choice(self.verifiers) for _ in range(2)]
        free = [each for each in drawn if each.has_room] or [each for each in self.verifiers if each.has_room]
        return min(free, key=lambda each: each.requests, default=None)

    def _gone(self, request: Request) -> None:
        self._at.pop(request, None)
        self._open -= 1
        self.outcome.last_end = self._clock.now
        if self._next:
            following = self._next.pop()
            following.home = request.home
            self._clock.after(self._fleet.pair.client, lambda: self._come(following))

    def _happen(self, fault: Fault) -> None:
        if fault.kind == "drafter is swapped":
            drafter = self.drafters[fault.index]
            drafter.reopen_all(self._clock.now, self.draft_share(drafter))
        elif fault.kind == "drafter fails":
            self._drafter_fails(self.drafters[fault.index], fault.seconds)
        else:
            verifier = self.verifiers[fault.index]
            # A restarted verifier hands its requests over; the clients of a failed one have to notice first.
            notice = 0.0 if fault.kind == "verifier is restarted" else self._fleet.notice
            self._verifier_goes(verifier, fault.seconds, notice)

    def _drafter_fails(self, drafter: Drafter, seconds: float) -> None:
        for request in drafter.fail():
            self.outcome.lost_drafts += 1
            self._at[request].lost(request, self._fleet.notice)
        self._clock.after(seconds, drafter.repair)

    def _verifier_goes(self, verifier: Verifier, seconds: float, notice: float) -> None:
        for request in verifier.fail():
            del self._at[request]
            request.moves += 1
            self.outcome.moved += 1
            self._clock.after(notice, lambda request=request: self._route(request))
        self._clock.after(seconds, verifier.repair)

    def _pool(self, verifier: int) -> list[int]:
        """Returns the drafters of a verifier: equal numbers for all, and for each drafter as many verifiers, up to
        rounding."""
        drafters, verifiers = len(self.drafters), len(self.verifiers)
        size = self._fleet.pool or max(2, -(-drafters // verifiers))
        size = min(size, drafters, _MOST_STREAMS)
        first = verifier * drafters // verifiers
        return [(first + offset) % drafters for offset in range(size)]
