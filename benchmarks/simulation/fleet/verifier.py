"""A verifier of a fleet: its waiting and running requests, and the time and tokens of each of its steps."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from benchmarks.harness.simulated_services import VirtualClock
from benchmarks.simulation.fleet.drafter import Drafter
from benchmarks.simulation.fleet.model_pair_times import ModelPairTimes
from benchmarks.simulation.fleet.outcome import Outcome
from benchmarks.simulation.fleet.request import Request
from benchmarks.simulation.fleet.speculation import Speculation
from speculative_engine.engine.prompt_shares import divide

_EXPLORE = 0.05
"""Share of the choices that go to a random drafter, as in drafter_pool/routing/drafter_choice.py."""
_RETRY_SECONDS = 1.0
"""Seconds after which a request for which no drafter had room tries again."""


class Owner(Protocol):
    """The owner of a verifier, which it notifies and queries."""

    outcome: Outcome

    def ended(self, request: Request) -> None:
        """Records that a request has all its tokens."""

    def target_share(self, verifier: Verifier) -> int:
        """Returns the number of busy verifiers on its core, including itself."""

    def draft_share(self, drafter: Drafter) -> int:
        """Returns the number of busy drafters on its core, including itself."""


class Verifier:
    """One verifier service: continuous batching of prompts and decoding, one step after another."""

    def __init__(
        self,
        index: int,
        clock: VirtualClock,
        pair: ModelPairTimes,
        speculation: Speculation,
        owner: Owner,
        *,
        places: int,
        max_waiting: int,
        step_rows: int,
        round_trip: float,
        seed: int,
    ):
        """places: most running requests; max_waiting: most waiting ones. step_rows: most rows of a step. round_trip:
        seconds to drafters and back."""
        self.index = index
        self.pool: Sequence[Drafter] = ()
        """The drafters that are attached."""
        self.busy_seconds = 0.0
        """Seconds spent in steps."""
        self._clock = clock
        self._cost = pair.target.cost()
        self._around = pair.target_around
        self._speculation = speculation
        self._owner = owner
        self._places = places
        self._max_waiting = max_waiting
        self._step_rows = step_rows
        self._one_way = (round_trip + pair.line) / 2
        self._rng = random.Random(f"{seed} verifier {index}")
        self._running: list[Request] = []
        self._waiting: deque[Request] = deque()
        self._drafters: dict[Request, Drafter] = {}
        """Drafters by request, for those requests that have one."""
        self._opened: dict[int, int] = {}
        """Number of this verifier's sequences at each drafter, by its index."""
        self._stepping = False
        self._epoch = 0
        self._faults = 0
        """Number of faults under way."""
        self._last_step = 0.0

    @property
    def up(self) -> bool:
        """Whether it serves."""
        return not self._faults

    @property
    def requests(self) -> int:
        """All running and waiting requests."""
        return len(self._running) + len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether it has work."""
        return self.up and bool(self._running or self._waiting)

    @property
    def has_room(self) -> bool:
        """Whether it accepts one more request."""
        return self.up and self.requests < self._places + self._max_waiting

    def add(self, request: Request) -> None:
        """Runs a request from its current state."""
        request.pending = request.length
        self._waiting.append(request)
        if not self._stepping:
            self._work()

    def lost(self, request: Request, seconds: float) -> None:
        """Handles the loss of a request's drafter, which is noticed after `seconds`."""
        self._opened[self._drafters.pop(request).index] -= 1
        request.retry_at = self._clock.now + seconds

    def fail(self) -> list[Request]:
        """Fails, losing all requests; returns them, as they must continue elsewhere."""
        lost = [*self._running, *self._waiting]
        for request in lost:
            self._close(request)
        self._running.clear()
        self._waiting.clear()
        self._stepping = False
        self._faults += 1
        self._epoch += 1
        return lost

    def repair(self) -> None:
        """Ends a failure."""
        self._faults -= 1

    def _work(self) -> None:
        now = self._clock.now
        while self._waiting and len(self._running) < self._places:
            request = self._waiting.popleft()
            self._running.append(request)
            self._find_drafter(request, now)
        if not self._running:
            return
        decoding = [request for request in self._running if not request.pending]
        prompts = [request for request in self._running if request.pending]
        share = self._owner.target_share(self)
        rows, wait, chosen = self._choose(decoding, now, share, bool(prompts))
        shares: list[int] = []
        if prompts:
            room = self._cost.prompt_rows(
                len(decoding), max(self._step_rows - rows, self._step_rows // 2 - len(decoding))
            )
            shares = divide([request.pending for request in prompts], room)
        read = sum(shares)
        seconds = self._cost.seconds(rows + read) + self._speculation.own_seconds(len(decoding), read)
        seconds = share * (seconds + self._around.seconds(len(decoding) + sum(map(bool, shares))))
        self.busy_seconds += seconds
        outcome = self._owner.outcome
        outcome.steps += 1
        reading = list(zip(prompts, shares, strict=True))
        outcome.sequence_steps += len(decoding) + sum(part == request.pending for request, part in reading)
        outcome.nodes += rows - len(decoding)
        self._stepping, epoch = True, self._epoch
        self._last_step = now
        self._clock.after(wait + seconds, lambda: self._finish(chosen, reading) if epoch == self._epoch else None)

    def _choose(
        self, decoding: list[Request], now: float, share: int, reading: bool
    ) -> tuple[int, float, list[tuple[Request, int]]]:
        """Returns the rows of the step, the seconds to wait before it, and what each sequence will get."""
        batch, rows, wait = len(decoding), len(decoding), 0.0
        chosen: list[tuple[Request, int]] = []
        since = self._last_step
        lost: dict[int, float] = {}
        for request in decoding:
            drafter, load, draft_share = self._drafters.get(request), 0, 1
            if drafter is None:
                if self._speculation.drafters and now >= request.retry_at:
                    self._find_drafter(request, now)
            elif request.drafted_from <= now:
                part = lost.get(drafter.index)
                if part is None:
                    part = lost[drafter.index] = drafter.share_lost(since, now)
                if not part or self._rng.random() >= part:
                    load, draft_share = drafter.sequences, self._owner.draft_share(drafter)
                    self._owner.outcome.drafted_steps += 1
            trace = self._speculation.trace(
                batch, load, request.chance, reading=reading, target_share=share, draft_share=draft_share
            )
            nodes, tokens = trace.steps[request.cursor % len(trace.steps)]
            request.cursor += 1
            rows += nodes
            wait += trace.wait
            chosen.append((request, tokens))
        return rows, wait / batch if batch else 0.0, chosen

    def _finish(self, chosen: list[tuple[Request, int]], reading: list[tuple[Request, int]]) -> None:
        self._stepping = False
        now = self._clock.now
        for request, rows in reading:
            request.pending -= rows
            if not request.pending and rows:
                self._give(request, 1, now)
        for request, tokens in chosen:
            self._give(request, tokens, now)
        self._running = [request for request in self._running if request.produced < request.output]
        self._work()

    def _give(self, request: Request, tokens: int, now: float) -> None:
        tokens = min(tokens, request.output - request.produced)
        self._owner.outcome.tokens_came(request, now, tokens)
        request.produced += tokens
        request.last = now
        if request.produced == request.output:
            self._close(request)
            self._owner.ended(request)

    def _find_drafter(self, request: Request, now: float) -> None:
        if not self._speculation.drafters:
            return
        free = [drafter for drafter in self.pool if drafter.has_room]
        if not free:
            request.retry_at = now + _RETRY_SECONDS
            return
        if self._rng.random() < _EXPLORE:
            drafter = self._rng.choice(free)
        else:
            least = min(self._opened.get(drafter.index, 0) for drafter in free)
            drafter = self._rng.choice([each for each in free if self._opened.get(each.index, 0) == least])
        self._drafters[request] = drafter
        self._opened[drafter.index] = self._opened.get(drafter.index, 0) + 1
        caught_up = drafter.open(request, now + self._one_way, self._owner.draft_share(drafter))
        request.drafted_from = caught_up + self._one_way

    def _close(self, request: Request) -> None:
        drafter = self._drafters.pop(request, None)
        if drafter is not None:
            drafter.close(request)
            self._opened[drafter.index] -= 1
