"""The Score calls in progress, which carry the engine's scores to their callers."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Iterable

import grpc

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.verifier_service_pb2 import ScoreResponse
from draftwire_core.engine.engine.scoring import Score, ScoreSpec
from draftwire_core.runtime.errors import ServiceError, at_capacity, failed_precondition, shutting_down
from verifier_service.admission.peer_limits import PeerLimits
from verifier_service.reading.score import ScoreOrder
from verifier_service.step_loop import StepLoop

_MOST = 64
"""Most calls in progress; further ones are refused."""
_RETRY_SECONDS = 1.0


class _Call:
    """Scores that wait for one caller, bounded by the length of its text."""

    def __init__(self) -> None:
        self.scores: deque[Score] = deque()
        self.error: ServiceError | None = None
        self.changed = asyncio.Event()


class Scores:
    """Runs Score calls. Used in the event loop only."""

    def __init__(self, steps: StepLoop | None, peer_limits: PeerLimits, *, allowed: bool) -> None:
        """steps: scores the texts; None for an engine that scores none."""
        self._steps = steps
        self._peer_limits = peer_limits
        self._allowed = allowed
        self._calls: dict[int, _Call] = {}
        self._numbers = itertools.count(-1, -1)  # negative: requests, which share the peer limits, count upward
        self._ending = False

    def check_allowed(self) -> None:
        """Raises ServiceError (NOT_ENABLED) unless the verifier runs with --allow-scoring, on an engine that scores."""
        if self._steps is None:
            raise failed_precondition(
                ErrorReason.ERROR_REASON_NOT_ENABLED, "Score: the verifier's engine scores no texts"
            )
        if not self._allowed:
            raise failed_precondition(
                ErrorReason.ERROR_REASON_NOT_ENABLED,
                "scoring is not enabled: start the verifier with --allow-scoring",
            )

    async def run(self, order: ScoreOrder, peer: str = "") -> AsyncGenerator[ScoreResponse, None]:
        """Scores a text of a peer; ending the iteration early frees its KV slots. Raises ServiceError."""
        assert self._steps is not None, "checked by check_allowed"
        if self._ending:
            raise shutting_down()
        if len(self._calls) >= _MOST:
            raise at_capacity(f"{len(self._calls)} texts are being scored; at most {_MOST} may be", _RETRY_SECONDS)
        number = next(self._numbers)
        self._peer_limits.add(number, peer, len(order.tokens))
        call = self._calls[number] = _Call()
        try:
            self._steps.add_score(ScoreSpec(number, order.tokens, order.first, order.top, order.states))
            done = False
            while not done:
                while not call.scores and call.error is None:
                    call.changed.clear()
                    await call.changed.wait()
                if call.error is not None:
                    raise call.error
                score = call.scores.popleft()
                yield _response(score)
                done = score.done
        finally:
            del self._calls[number]
            self._peer_limits.remove(number)
            self._steps.remove_score(number)

    def take(self, scores: Iterable[Score]) -> None:
        """Delivers the scores of a step to their calls."""
        for score in scores:
            call = self._calls.get(score.score_id)
            if call is None:
                continue
            if score.fault:
                call.error = ServiceError(
                    grpc.StatusCode.INTERNAL,
                    ErrorReason.ERROR_REASON_INTERNAL,
                    "the target model computed logits that are not numbers for this text",
                )
            else:
                call.scores.append(score)
            call.changed.set()

    def end(self, error: ServiceError) -> None:
        """Ends every call in progress with an error, and refuses further ones."""
        self._ending = True
        for call in self._calls.values():
            call.error = error
            call.changed.set()


def _response(score: Score) -> ScoreResponse:
    return ScoreResponse(
        first_position=score.first,
        top=len(score.token_ids[0]),
        token_ids=itertools.chain.from_iterable(score.token_ids),
        log_probs=itertools.chain.from_iterable(score.log_probs),
        states=score.states,
    )
