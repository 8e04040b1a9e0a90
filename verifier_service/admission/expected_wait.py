"""The expected wait of a new request, until its own prompt is computed."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from itertools import islice

from draftwire_core.engine.planning.running_mean import RunningMean
from draftwire_core.engine.planning.step_cost import StepCost

_MEMORY_SECONDS = 10.0
"""Approximate time for which the token rate under load is remembered: long enough for the steps of many requests."""
_PRIOR_SECONDS = 1.0
"""Weight, in seconds, of the rate predicted from the step cost, before any rate was measured."""
_FORGET_SECONDS = 60.0
"""Approximate time for which a measured rate is remembered when no further one is measured."""
_STRETCH = 3.0
"""First estimate of a step's time while requests wait, as a multiple of one without prompts."""
_LEAST_RATE = 0.1
"""Least rate that is believed, as a share of plain decoding's: steps with prompts are at most three times as long."""
_ROUNDS = 4
"""Requests per place that have to leave, up to which it counts how far each of them is."""
_LEAST_LEFT = 1 / 8
"""Least part of the average length that a request still has before it, unless it asked for less."""
_WEIGHT = 1 / 16
"""Weight of a request in the running averages over requests."""


class ExpectedWait:
    """Estimates the wait from the requests ahead and their speed. Independent of requests and engine, for tests.

    The wait has two parts. If all places are taken, as many requests must end as wait already, and one more. The time
    for that is their tokens, on average those of the requests that ended last and at most what each asked for, over the
    tokens per second generated while requests wait; or less, by how far the requests ahead are. Once there is a place,
    the prompts ahead must be computed. The time for that is their tokens, less the recent share of prefix cache hits,
    over the prompt rows of a step, times its cost c(n).
    """

    def __init__(self, cost: StepCost, max_step_rows: int, clock: Callable[[], float] = time.perf_counter):
        """max_step_rows: most rows of a step. clock: returns seconds; replaced in tests."""
        self._cost = cost
        self._max_step_rows = max_step_rows
        self._clock = clock
        self._most: dict[int, float] = {}
        """Most tokens that each request may generate, by request, oldest first."""
        self._done: dict[int, int] = {}
        """Tokens that each request has generated, by request."""
        self._prompts: dict[int, int] = {}
        """Prompt tokens of requests without a first token yet, by request, oldest first."""
        self._begun: set[int] = set()
        self._length: float | None = None
        """Average tokens of the requests that have ended."""
        self._computed = 1.0
        """Average share of a prompt that is computed rather than read from the prefix cache."""
        self._tokens = 0.0
        self._seconds = 0.0
        """Seconds in which `_tokens` were generated while requests waited for places; both decay."""
        self._stepped: float | None = None
        """End of the last step if requests waited for places then."""
        self._measured = 0.0
        """Time of the last measurement of the rate."""
        self._step = RunningMean(weight=_WEIGHT)
        """Seconds of a step while requests wait, as far as they count: one that was held up, as by a compilation or by
        a stop of the machine, says little of those that follow."""

    def add(self, request_id: int, prompt_tokens: int, most_tokens: float = math.inf) -> None:
        """Adds a request that waits. most_tokens: most tokens that it may generate."""
        self._prompts[request_id] = prompt_tokens
        self._most[request_id] = most_tokens

    def begin(self, request_id: int, cached_tokens: int) -> None:
        """Records that a request got its first token. cached_tokens: prompt tokens found in the prefix cache."""
        tokens = self._prompts.pop(request_id, 0)
        if tokens:
            self._computed += _WEIGHT * (1 - min(cached_tokens, tokens) / tokens - self._computed)
            self._begun.add(request_id)

    def took(self, request_id: int, tokens: int) -> None:
        """Records that a request got so many tokens."""
        if request_id in self._most:
            self._done[request_id] = self._done.get(request_id, 0) + tokens

    def end(self, request_id: int, tokens: int) -> None:
        """Records that a request ended, for any reason, after `tokens` tokens; ignores an unknown one."""
        self._prompts.pop(request_id, None)
        self._most.pop(request_id, None)
        self._done.pop(request_id, None)
        if request_id in self._begun:
            self._begun.discard(request_id)
            self._length = tokens if self._length is None else self._length + _WEIGHT * (tokens - self._length)

    def step(self, tokens: int, places: int) -> None:
        """Records that a step ended and committed `tokens` tokens. places: how many requests run at once."""
        now = self._clock()
        full = self._ahead > places
        if full and self._stepped is not None:
            if not self._step.known:
                self._step.add(_STRETCH * self._cost.seconds(places, places))
            seconds = self._step.add(now - self._stepped)
            self._tokens, self._seconds = self._recent(places)
            self._measured = now
            kept = math.exp(-seconds / _MEMORY_SECONDS)
            self._tokens = self._tokens * kept + tokens
            self._seconds = self._seconds * kept + seconds
        self._stepped = now if full else None

    def seconds(self, places: int) -> float:
        """Returns the expected wait of a new request, without its own prompt. places: how many requests run at once."""
        for_place = 0.0
        leaving = self._ahead - places + 1
        if leaving > 0 and self._length is not None:
            length = self._length
            tokens, seconds = self._recent(places)
            rate = max(tokens / seconds, _LEAST_RATE * self._plain_rate(places))
            for_place = sum(min(length, most) for most in islice(self._most.values(), leaving)) / rate
            if leaving <= _ROUNDS * places:
                for_place = min(for_place, self._next_place(places, length) * places / rate)
        return for_place + self._prompt_seconds(places)

    @property
    def _ahead(self) -> int:
        return len(self._prompts) + len(self._begun)

    def _next_place(self, places: int, length: float) -> float:
        """Returns how many tokens each running request generates until the requests ahead have left a place, by how far
        they are. length: average tokens of a request."""
        until: list[float] = []
        for request_id, most in self._most.items():
            done = self._done.get(request_id, 0)
            left = min(max(length - done, _LEAST_LEFT * length), most - done)
            if len(until) < places:
                heapq.heappush(until, left)
            else:
                heapq.heapreplace(until, until[0] + left)
        return max(0.0, until[0])

    def _prompt_seconds(self, places: int) -> float:
        """Returns the time to compute the prompts of the requests that have places."""
        decoding = min(len(self._begun), places)
        tokens = self._computed * sum(islice(self._prompts.values(), places - decoding))
        if not tokens:
            return 0.0
        rows = max(1, self._cost.prompt_rows(decoding, self._max_step_rows - decoding))
        return math.ceil(tokens / rows) * self._cost.seconds(decoding + min(rows, math.ceil(tokens)), max(1, decoding))

    def _recent(self, places: int) -> tuple[float, float]:
        """Returns tokens that were generated while requests waited for places, and the seconds that took. What was
        measured longer ago gives way to what the cost of a step predicts."""
        kept = math.exp((self._measured - self._clock()) / _FORGET_SECONDS) if self._seconds else 0.0
        prior = (1 - kept) * _PRIOR_SECONDS
        return kept * self._tokens + prior * self._plain_rate(places), kept * self._seconds + prior

    def _plain_rate(self, places: int) -> float:
        """Returns the tokens per second of plain decoding with `places` requests."""
        return places / self._cost.seconds(places, places)
