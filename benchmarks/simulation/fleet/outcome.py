"""The outcome of a fleet's requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.simulation.fleet.request import Request
from benchmarks.simulation.fleet.waiting_times import WaitingTimes


@dataclass
class Outcome:
    """Counts collected during a simulation. Tokens and gaps are those in the window; first tokens are those of requests
    that arrived in it."""

    start: float = 0.0
    end: float = float("inf")
    """End of the window in seconds."""
    tokens: int = 0
    arrived: int = 0
    finished: int = 0
    refused: int = 0
    moved: int = 0
    """Times a request continued at another verifier."""
    lost_drafts: int = 0
    """Times a request lost its drafter."""
    all_tokens: int = 0
    steps: int = 0
    sequence_steps: int = 0
    """Sum over steps of the sequences that they decoded."""
    drafted_steps: int = 0
    """Sum over steps of the decoded sequences that had a drafter."""
    nodes: int = 0
    first_tokens: WaitingTimes = field(default_factory=WaitingTimes)
    gaps: WaitingTimes = field(default_factory=WaitingTimes)
    """Times from each token to the next; 0 between tokens that arrived together."""
    per_token: WaitingTimes = field(default_factory=WaitingTimes)
    """Average seconds per token after the first, for each request that arrived in the window."""
    last_end: float = 0.0
    """Time at which the last request ended."""

    def tokens_came(self, request: Request, now: float, tokens: int) -> None:
        """Counts tokens of a request; `request.last` and `produced` still have their previous values."""
        self.all_tokens += tokens
        inside = self.start <= now < self.end
        if inside:
            self.tokens += tokens
        if not request.produced:
            request.first = now
            if self.start <= request.at < self.end:
                self.first_tokens.add(now - request.at)
            if inside and tokens > 1:
                self.gaps.add(0.0, tokens - 2)
        elif inside:
            self.gaps.add(now - request.last, tokens - 1)
        if request.produced + tokens == request.output > 1 and self.start <= request.at < self.end:
            self.per_token.add((now - request.first) / (request.output - 1))

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of the window, or of the whole time if the window has no end."""
        end = self.last_end if self.end == float("inf") else self.end
        return self.tokens / (end - self.start) if end > self.start else 0.0

    @property
    def tokens_per_step(self) -> float:
        """Tokens per sequence and step."""
        return self.all_tokens / max(1, self.sequence_steps)
