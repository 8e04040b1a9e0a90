"""Figures of a load: useful tokens per second, share of refusals, and waits of the other requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.scale.open_load import Answer
from draftwire_tools.turns import quantile


@dataclass(frozen=True)
class Objective:
    """Limits within which a request must be served to count as useful."""

    first_token_seconds: float
    token_seconds: float
    """Seconds per token after the first, on average over the request."""

    def met_by(self, answer: Answer) -> bool:
        """Whether a request finished within the limits."""
        if not answer.finished or answer.first_token_seconds > self.first_token_seconds:
            return False
        later = len(answer.token_ids) - answer.arrivals[0].tokens
        return later <= 0 or (answer.arrivals[-1].at - answer.arrivals[0].at) / later <= self.token_seconds


@dataclass(frozen=True)
class LoadFigures:
    """Figures of the requests due within a window of time. NaN where there was nothing to measure.

    Their tokens count whenever they arrive: while all requests are served, the same requests bring the same tokens
    however fast they are served, and beyond that only as many are admitted as are served.
    """

    requests: int
    goodput: float
    """Tokens per second of requests that met their objective, over the window."""
    completed: float
    """Tokens per second of requests that finished, over the window."""
    refused: float
    """Share of requests that were refused."""
    refusal_seconds: float
    """The 99th percentile of the time until a refusal."""
    first_token_median: float
    first_token_p99: float
    """99th percentile of the time to the first token, of admitted requests."""
    gap_p95: float
    """The 95th percentile of the time from one token to the next."""
    least_retry: float
    """Shortest time after which a refusal allowed a retry; 0 if one did not give a time."""
    lateness: float
    """99th percentile of the delay with which requests were sent: a sign that the client lacks processor time."""

    @classmethod
    def of(cls, answers: Sequence[Answer], start: float, end: float, objective: Objective) -> LoadFigures:
        """Returns the figures of the window from `start` to `end`, in seconds after the load's start."""
        seconds = end - start
        inside = [answer for answer in answers if start <= answer.due_at < end]
        refusals = [
            (answer.refused_at - answer.asked_at, answer.retry_seconds or 0.0)
            for answer in inside
            if answer.refused_at is not None
        ]
        let_in = [answer.first_token_seconds for answer in inside if answer.finished]
        gaps = [gap for answer in inside if answer.finished for gap in answer.gaps]
        return cls(
            requests=len(inside),
            goodput=sum(len(answer.token_ids) for answer in inside if objective.met_by(answer)) / seconds,
            completed=sum(len(answer.token_ids) for answer in inside if answer.finished) / seconds,
            refused=len(refusals) / len(inside) if inside else math.nan,
            refusal_seconds=_quantile([waited for waited, _ in refusals], 0.99),
            first_token_median=_quantile(let_in, 0.5),
            first_token_p99=_quantile(let_in, 0.99),
            gap_p95=_quantile(gaps, 0.95),
            least_retry=min((retry for _, retry in refusals), default=math.nan),
            lateness=_quantile([answer.asked_at - answer.due_at for answer in inside], 0.99),
        )


def _quantile(values: Sequence[float], share: float) -> float:
    return quantile(values, share) if values else math.nan
