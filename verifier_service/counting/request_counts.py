"""Counts of requests: their tokens, their times, their endings and the refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.observability.histogram import Histogram
from draftwire_core.runtime.observability.metric_families import SECONDS, STEP_SECONDS, TOKENS
from verifier_service.running.running_request import RunningRequest

_FINISHED = ("stop", "length", "deadline")
"""Finish reasons of RunningRequest."""
ENDINGS = (*_FINISHED, "abort", "error", "shutdown")
"""Endings of a request. `abort`: its caller left. `shutdown`: it was sent to another verifier."""


class RequestCounts:
    """Totals of all requests since the start. Used in the event loop only."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.goodput_tokens = 0
        """Output tokens of requests that ended by a stop or by their length."""
        self.ended: Counter[str] = Counter()
        """Requests by ending, one of ENDINGS."""
        self.refused: Counter[str] = Counter()
        """Requests that never began, by the error's reason."""
        self.first_token = Histogram(SECONDS)
        """Seconds from a request's admission to its first token."""
        self.between_tokens = Histogram(STEP_SECONDS)
        """Seconds from a request's tokens to its next ones, of which one step may commit several."""
        self.latency = Histogram(SECONDS)
        """Seconds from the admission to the end of requests that finished."""
        self.prompt_lengths = Histogram(TOKENS)
        self.output_lengths = Histogram(TOKENS)

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Counts a ServiceError raised inside as a refusal, and raises it again."""
        try:
            yield
        except ServiceError as error:
            self.refused[error.reason_name] += 1
            raise

    def took(self, request: RunningRequest, tokens: int, now: float) -> None:
        """Counts the tokens that a step committed for a request. now: by time.perf_counter."""
        self.generation_tokens += tokens
        last = request.times.last_tokens
        if last is None:
            self.prompt_tokens += request.order.prompt_length
            self.first_token.observe(now - request.times.admitted)
        else:
            self.between_tokens.observe(now - last)
        request.times.last_tokens = now

    def end(self, request: RunningRequest, now: float) -> None:
        """Counts a request that had begun and is over, for any reason."""
        ending = _ending(request)
        self.ended[ending] += 1
        if ending not in _FINISHED:
            return
        prompt = request.order.prompt_length
        # The tokens that a resumed request came with are another verifier's work.
        made = len(request.tokens) - prompt - len(request.order.resumed)
        if ending != "deadline":
            self.goodput_tokens += made
        self.latency.observe(now - request.times.admitted)
        self.prompt_lengths.observe(prompt)
        self.output_lengths.observe(made)


def _ending(request: RunningRequest) -> str:
    if request.fault is not None:
        shutdown = request.fault.reason == ErrorReason.ERROR_REASON_SHUTTING_DOWN
        return "shutdown" if shutdown else "error"
    return request.finish_reason if request.finished else "abort"
