"""How requests went: their tokens, their times, how they ended, and which were refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from draftwire.v1.error_reason_pb2 import ErrorReason
from service_runtime.errors import ServiceError
from service_runtime.observability.histogram import Histogram
from service_runtime.observability.metric_families import SECONDS, STEP_SECONDS, TOKENS
from verifier_service.running.running_request import RunningRequest

_FINISHED = ("stop", "length", "deadline")
"""As RunningRequest tells why it finished."""
ENDINGS = (*_FINISHED, "abort", "error", "shutdown")
"""How a request ends; `abort`: its caller left, `shutdown`: it was told to go on elsewhere."""


class RequestCounts:
    """Sums over requests since the start. Used in the event loop only."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.goodput_tokens = 0
        """Output tokens of requests that were brought to their end: by a stop, or by their length."""
        self.ended: Counter[str] = Counter()
        """Requests by how they ended, one of ENDINGS."""
        self.refused: Counter[str] = Counter()
        """Requests that never began, by the error's reason."""
        self.first_token = Histogram(SECONDS)
        """From a request's admission to its first token."""
        self.between_tokens = Histogram(STEP_SECONDS)
        """From a request's tokens to its next ones, which may be several at once."""
        self.latency = Histogram(SECONDS)
        """From a request's admission to its end, of those that finished."""
        self.prompt_lengths = Histogram(TOKENS)
        self.output_lengths = Histogram(TOKENS)

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Count a ServiceError that is raised inside as a refusal, and raise it."""
        try:
            yield
        except ServiceError as error:
            self.refused[error.reason_name] += 1
            raise

    def took(self, request: RunningRequest, tokens: int, now: float) -> None:
        """A step brought a request so many tokens. now: by time.perf_counter."""
        self.generation_tokens += tokens
        last = request.last_tokens_at
        if last is None:
            self.prompt_tokens += request.order.prompt_length
            self.first_token.observe(now - request.admitted_at)
        else:
            self.between_tokens.observe(now - last)
        request.last_tokens_at = now

    def end(self, request: RunningRequest, now: float) -> None:
        """A request that had begun is over, however it ended."""
        ending = _ending(request)
        self.ended[ending] += 1
        if ending not in _FINISHED:
            return
        prompt = request.order.prompt_length
        # What a resumed request had before is another verifier's work.
        made = len(request.tokens) - prompt - len(request.order.resumed)
        if ending != "deadline":
            self.goodput_tokens += made
        self.latency.observe(now - request.admitted_at)
        self.prompt_lengths.observe(prompt)
        self.output_lengths.observe(made)


def _ending(request: RunningRequest) -> str:
    if request.fault is not None:
        shutdown = request.fault.reason == ErrorReason.ERROR_REASON_SHUTTING_DOWN
        return "shutdown" if shutdown else "error"
    return request.finish_reason if request.finished else "abort"
