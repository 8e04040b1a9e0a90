"""When a request was admitted, when it began, and when its tokens came."""

from __future__ import annotations

import time

from draftwire_core.runtime.observability.span import Interval


class RequestTimes:
    """Times of one request, by ``time.perf_counter``."""

    def __init__(self) -> None:
        self.admitted = time.perf_counter()
        self.began: float | None = None
        """Time at which the first step began."""
        self.last_tokens: float | None = None
        """Time at which a step last committed tokens; the request counts use it."""
        self._first_token: float | None = None
        self._ended: float | None = None

    def token(self) -> None:
        """Records that a token came."""
        if self._first_token is None:
            self._first_token = time.perf_counter()

    def end(self) -> None:
        """Records that the request ended."""
        self._ended = time.perf_counter()

    @property
    def first_token_seconds(self) -> float:
        """Seconds from the admission to the first token; without one, to the end or to now."""
        return (self._first_token or self._end) - self.admitted

    @property
    def total_seconds(self) -> float:
        """Seconds from the admission to the end, or to now."""
        return self._end - self.admitted

    def intervals(self) -> list[Interval]:
        """Returns how long the request spent in the queue, in prefill and in decoding, as far as it came."""
        marks = [self.admitted, self.began, self._first_token]
        begun = [mark for mark in marks if mark is not None]
        names = ("queue", "prefill", "decode")
        return [Interval(*part) for part in zip(names, begun, [*begun[1:], self._end], strict=False)]

    @property
    def _end(self) -> float:
        return self._ended or time.perf_counter()
