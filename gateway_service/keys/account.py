"""The account of a named key: what its holder has used in the last minute, and has running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway_service.http.errors import RETRY_SECONDS, GatewayError
from gateway_service.keys.key_file import NamedKey
from gateway_service.keys.sliding_window import SlidingWindow
from gateway_service.observability.key_metrics import KeyMetrics

_UNITS = {"requests_per_minute": "requests", "tokens_per_minute": "tokens"}


class Account:
    """Counts what is used under one name, however the limits change. It is kept when the file of keys is read again."""

    def __init__(self, name: str, clock: Callable[[], float], metrics: KeyMetrics) -> None:
        """Starts with nothing used. clock: a clock in seconds with any origin."""
        self.name = name
        self.clock = clock
        self.metrics = metrics
        self.tokens = SlidingWindow(clock)
        """Tokens of the last minute: those that came, and those that running requests may still take."""
        self._requests = SlidingWindow(clock)
        self._running = 0

    def count_request(self, key: NamedKey) -> None:
        """Counts a request.

        Raises:
            GatewayError: the limit is reached.
        """
        self._check("requests_per_minute", key.requests_per_minute, self._requests, 1)
        self._requests.add(1)
        self.metrics.requests.labels(self.name).inc()

    def check_tokens(self, key: NamedKey, tokens: int) -> None:
        """Checks that there is room for the tokens that a request may take.

        Raises:
            GatewayError: there is none now, or there never is.
        """
        limit = key.tokens_per_minute
        if limit is not None and tokens > limit:
            raise self.refused(
                "tokens_per_minute",
                GatewayError(
                    f"the request may take {tokens} tokens, prompt included, more than the limit of the key "
                    f"{self.name}: {limit} tokens a minute (tokens_per_minute); ask for fewer, or a shorter output",
                    code="request_too_large",
                ),
            )
        self._check("tokens_per_minute", limit, self.tokens, max(1, tokens))

    @contextmanager
    def running(self, key: NamedKey, choices: int) -> Iterator[None]:
        """Counts choices as running until the `with` is left.

        Raises:
            GatewayError: too many would run.
        """
        most = key.max_running
        if most is not None and choices > most:
            raise self.refused(
                "max_running",
                GatewayError(
                    f"the request has {choices} choices; with the key {self.name} at most {most} may run (max_running)",
                    code="request_too_large",
                ),
            )
        if most is not None and self._running + choices > most:
            raise self.refused(
                "max_running",
                GatewayError(
                    f"rate limit reached for the key {self.name}: {self._running} choices are running and {choices} "
                    f"more were asked for; at most {most} may run (max_running)",
                    status=429,
                    code="rate_limit_exceeded",
                    retry_after_seconds=RETRY_SECONDS,
                ),
            )
        self._running += choices
        self.metrics.running.labels(self.name).inc(choices)
        try:
            yield
        finally:
            self._running -= choices
            self.metrics.running.labels(self.name).dec(choices)

    def headers(self, key: NamedKey) -> dict[str, str]:
        """Returns OpenAI's headers on the limits of a key and on what is left of them."""
        headers: dict[str, str] = {}
        for unit, limit, window in (
            ("requests", key.requests_per_minute, self._requests),
            ("tokens", key.tokens_per_minute, self.tokens),
        ):
            if limit is not None:
                headers[f"x-ratelimit-limit-{unit}"] = str(limit)
                headers[f"x-ratelimit-remaining-{unit}"] = str(max(0, limit - window.used))
                headers[f"x-ratelimit-reset-{unit}"] = f"{window.seconds_until(0):.3f}s"
        return headers

    def refused(self, limit: str, error: GatewayError) -> GatewayError:
        """Counts a refusal by a limit; returns the error."""
        self.metrics.refusals.labels(self.name, limit).inc()
        return error

    def _check(self, name: str, limit: int | None, window: SlidingWindow, amount: int) -> None:
        if limit is None or (used := window.used) + amount <= limit:
            return
        seconds = window.seconds_until(limit - amount)
        raise self.refused(
            name,
            GatewayError(
                f"rate limit reached for the key {self.name} on {_UNITS[name]} a minute ({name}): limit {limit}, "
                f"used {used}, requested {amount}; try again in {seconds:.1f} s",
                status=429,
                code="rate_limit_exceeded",
                retry_after_seconds=seconds,
            ),
        )
