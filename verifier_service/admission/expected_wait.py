"""How long a request that came now would wait before its own prompt is computed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import islice

from speculative_engine.planning.step_cost import StepCost

_MEMORY_SECONDS = 10.0
"""How long the rate of tokens under load is remembered, about: long enough for the steps of many requests."""
_PRIOR_SECONDS = 1.0
"""Weight of what the cost of a step says of that rate, before any was measured."""
_WEIGHT = 1 / 16
"""Weight of a request in the running averages over requests."""


class ExpectedWait:
    """Knows who is ahead, and how fast they go. Apart from requests and engine, so that a test can play both.

    Two things are waited for. Where all places are taken, that requests end: as many as wait already, and one more. How
    fast they do is the tokens of a request, on average, over the tokens a second that are generated while requests
    wait. With a place, that the prompts before are computed: their tokens, less what the prefix cache had of late, over
    what a step computes of them by c(n).
    """

    def __init__(self, cost: StepCost, max_step_rows: int, clock: Callable[[], float] = time.perf_counter):
        """max_step_rows: most rows of a step. clock: gives seconds, for tests."""
        self._cost = cost
        self._max_step_rows = max_step_rows
        self._clock = clock
        self._prompts: dict[int, int] = {}
        """Tokens of the prompts of those that have no first token yet, by request, oldest first."""
        self._begun: set[int] = set()
        self._length: float | None = None
        """Tokens of a request that has ended, on average."""
        self._computed = 1.0
        """Share of prompts that is computed, and not read from the prefix cache."""
        self._tokens = 0.0
        self._seconds = 0.0
        """Tokens that were generated while requests waited for places, and the time it took, both fading."""
        self._stepped: float | None = None
        """When the last step ended in which requests waited for places."""

    def add(self, request_id: int, prompt_tokens: int) -> None:
        """A request came, and waits."""
        self._prompts[request_id] = prompt_tokens

    def begin(self, request_id: int, cached_tokens: int) -> None:
        """A request got its first token; cached_tokens: what the prefix cache had of its prompt."""
        tokens = self._prompts.pop(request_id, 0)
        if tokens:
            self._computed += _WEIGHT * (1 - min(cached_tokens, tokens) / tokens - self._computed)
            self._begun.add(request_id)

    def end(self, request_id: int, tokens: int) -> None:
        """A request ended, whyever, after so many tokens; does nothing if it is not known."""
        self._prompts.pop(request_id, None)
        if request_id in self._begun:
            self._begun.discard(request_id)
            self._length = tokens if self._length is None else self._length + _WEIGHT * (tokens - self._length)

    def step(self, tokens: int, places: int) -> None:
        """A step ended that brought so many tokens, with places for so many requests."""
        now = self._clock()
        full = self._ahead > places
        if full and self._stepped is not None:
            seconds = now - self._stepped
            if not self._seconds:
                self._seconds = _PRIOR_SECONDS
                self._tokens = self._plain_rate(places) * _PRIOR_SECONDS
            kept = math.exp(-seconds / _MEMORY_SECONDS)
            self._tokens = self._tokens * kept + tokens
            self._seconds = self._seconds * kept + seconds
        self._stepped = now if full else None

    def seconds(self, places: int) -> float:
        """How long a request that came now would wait, where `places` run at once; its own prompt comes on top."""
        for_place = 0.0
        leaving = self._ahead - places + 1
        if leaving > 0 and self._length is not None:
            rate = self._tokens / self._seconds if self._seconds else self._plain_rate(places)
            for_place = leaving * self._length / rate
        return for_place + self._prompt_seconds(places)

    @property
    def _ahead(self) -> int:
        return len(self._prompts) + len(self._begun)

    def _prompt_seconds(self, places: int) -> float:
        """What computing the prompts takes that have places."""
        decoding = min(len(self._begun), places)
        tokens = self._computed * sum(islice(self._prompts.values(), places - decoding))
        if not tokens:
            return 0.0
        rows = max(1, self._cost.prompt_rows(decoding, self._max_step_rows - decoding))
        return math.ceil(tokens / rows) * self._cost.seconds(decoding + min(rows, math.ceil(tokens)), max(1, decoding))

    def _plain_rate(self, places: int) -> float:
        """Tokens a second of so many requests that are decoded plainly."""
        return places / self._cost.seconds(places, places)
