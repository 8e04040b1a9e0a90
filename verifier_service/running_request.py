"""One request while it runs, on the event loop's side: its tokens, text, statistics and events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import grpc

from draftwire.v1 import speculation_pb2
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.verifier_service_pb2 import (
    FinishReason,
    GenerateChunk,
    GenerateFinished,
    GenerateResponse,
    GenerateStarted,
    ServedRequest,
    Usage,
)
from service_runtime.errors import ServiceError
from speculative_engine.sequence import SequenceSpec
from speculative_engine.step_result import Finish, SequenceOutcome
from speculative_engine.tokenizer import Tokenizer
from verifier_service.acceptance_reader import tell_acceptance
from verifier_service.draft_source import drafter_of
from verifier_service.rejected_drafts import tell_rejected
from verifier_service.request_reader import GenerateOrder
from verifier_service.stop_strings import StopStrings


class RunningRequest:
    """Takes the engine's outcomes and hands out events.

    Outcomes that come faster than the caller reads are joined into one chunk, so what waits is bounded by the
    request's own length.
    """

    def __init__(
        self,
        sequence_id: int,
        order: GenerateOrder,
        tokenizer: Tokenizer,
        eos_token_ids: frozenset[int],
        model_fingerprint: str = "",
    ):
        self.sequence_id = sequence_id
        self.order = order
        self.tokens = [*order.prompt, *order.resumed]
        """Prompt and output committed so far, in step with the verdicts sent to drafters."""
        self.finished = False
        self._eos = frozenset() if order.ignore_eos else eos_token_ids
        self._tokenizer = tokenizer
        self._model_fingerprint = model_fingerprint
        self._text = tokenizer.stream()
        self._stops = StopStrings(order.stops)
        self._admitted = time.perf_counter()
        self._first_token: float | None = None
        self._stats = speculation_pb2.SpeculationStats()
        tell_acceptance(self._stats, order.acceptance, order.preset)
        self._by_drafter: dict[str, speculation_pb2.DrafterStats] = {}
        self._chunk = GenerateChunk()
        self._finish_reason = FinishReason.FINISH_REASON_UNSPECIFIED
        self._fault: ServiceError | None = None
        self._changed = asyncio.Event()
        self._replay()

    def spec(self) -> SequenceSpec:
        """What the engine is asked to do."""
        return SequenceSpec(
            sequence_id=self.sequence_id,
            tokens=list(self.tokens),
            max_length=self.order.max_length,
            sampling=self.order.sampling,
            eos_token_ids=self._eos,
            max_draft_tokens=self.order.max_draft_tokens,
            acceptance=self.order.acceptance,
            report_rejected=self.order.report_rejected,
        )

    def take(self, outcome: SequenceOutcome) -> None:
        """Take in what a step did. May finish the request earlier than the engine does: at a stop string."""
        self._stats.steps += 1
        self._stats.hits += outcome.hit
        for drafted_by, count in outcome.drafted.items():
            self._drafter(drafter_of(drafted_by)).draft_tokens += count
            self._stats.draft_tokens += count
        for token, source in zip(outcome.tokens, outcome.sources, strict=True):
            if source is not None:
                self._drafter(drafter_of(source)).accepted_tokens += 1
                self._stats.accepted_tokens += 1
            self._commit(token, None if source is None else drafter_of(source))
            if self.finished:
                break
        tell_rejected(self._chunk, outcome.rejected, self._source_number, self._tokenizer)
        if outcome.finish is Finish.FAULT:
            self.fail(
                ServiceError(
                    grpc.StatusCode.INTERNAL,
                    ErrorReason.ERROR_REASON_INTERNAL,
                    "the target model gave logits that are no numbers for this request",
                )
            )
        elif outcome.finish is not None and not self.finished:
            self._finish(
                FinishReason.FINISH_REASON_STOP if outcome.finish is Finish.EOS else FinishReason.FINISH_REASON_LENGTH
            )
        self._changed.set()

    def count_stale(self, nodes: int) -> None:
        """Count nodes that came too late."""
        self._stats.stale_nodes += nodes

    def fail(self, error: ServiceError) -> None:
        """End the request with an error."""
        if not self.finished:
            self._fault = error
            self.finished = True
            self._changed.set()

    async def events(self) -> AsyncIterator[GenerateResponse]:
        """Started, chunks, finished. Raises the ServiceError the request ended with."""
        yield GenerateResponse(
            started=GenerateStarted(
                request_id=self.order.request_id,
                prompt_tokens=len(self.order.prompt),
                seed=self.order.sampling.seed,
                prompt_token_ids=self.order.prompt if self.order.prompt_was_text else (),
                model_fingerprint=self._model_fingerprint,
            )
        )
        while True:
            if self._chunk.token_ids:
                chunk, self._chunk = self._chunk, GenerateChunk()
                yield GenerateResponse(chunk=chunk)
            elif self._fault is not None:
                raise self._fault
            elif self.finished:
                yield GenerateResponse(finished=self._final())
                return
            else:
                self._changed.clear()
                await self._changed.wait()

    @property
    def failed(self) -> bool:
        """Whether it ended with an error."""
        return self._fault is not None

    def served(self, drafters: Sequence[str]) -> ServedRequest:
        """The request as those who follow the traffic are told of it, once it has finished; drafters: who drafts."""
        length = len(self.order.prompt)
        served = ServedRequest(
            prompt_token_ids=self.tokens[:length],
            token_ids=self.tokens[length:],
            speculation=self._stats,
            drafters=drafters,
        )
        served.speculation.drafters.extend(self._by_drafter.values())
        return served

    def _replay(self) -> None:
        """Bring text and stop strings to where a resumed request was; its caller has that text already."""
        for index, token in enumerate(self.order.resumed):
            self._stops.push("" if token in self._eos else self._text.push(token))
            if token in self._eos or self._stops.found is not None:
                self._finish(FinishReason.FINISH_REASON_STOP)
            elif len(self.order.prompt) + index + 1 >= self.order.max_length:
                self._finish(FinishReason.FINISH_REASON_LENGTH)
            if self.finished:
                self.tokens = self.tokens[: len(self.order.prompt) + index + 1]
                return

    def _commit(self, token: int, drafter: str | None) -> None:
        if self._first_token is None:
            self._first_token = time.perf_counter()
        self.tokens.append(token)
        self._chunk.token_ids.append(token)
        self._chunk.token_texts.append(self._tokenizer.decode([token]))
        self._chunk.sources.append(self._source_number(drafter))
        self._chunk.text += self._stops.push("" if token in self._eos else self._text.push(token))
        if self._stops.found is not None:
            self._finish(FinishReason.FINISH_REASON_STOP)

    def _source_number(self, drafter: str | None) -> int:
        if drafter is None:
            return 0
        if drafter not in self._chunk.drafters:
            self._chunk.drafters.append(drafter)
        return list(self._chunk.drafters).index(drafter) + 1

    def _drafter(self, name: str) -> speculation_pb2.DrafterStats:
        stats = self._by_drafter.get(name)
        if stats is None:
            stats = self._by_drafter[name] = speculation_pb2.DrafterStats(name=name)
        return stats

    def _finish(self, reason: FinishReason) -> None:
        self.finished = True
        self._finish_reason = reason

    def _final(self) -> GenerateFinished:
        text = ""
        if self._stops.found is None:
            # What was incomplete may complete a stop string only now.
            text = self._stops.push(self._text.flush()) + self._stops.flush()
            if self._stops.found is not None:
                self._finish_reason = FinishReason.FINISH_REASON_STOP
        now = time.perf_counter()
        self._stats.drafters.extend(self._by_drafter.values())
        return GenerateFinished(
            finish_reason=self._finish_reason,
            text=text,
            usage=Usage(
                prompt_tokens=len(self.order.prompt),
                completion_tokens=len(self.tokens) - len(self.order.prompt),
                first_token_seconds=(self._first_token or now) - self._admitted,
                total_seconds=now - self._admitted,
            ),
            speculation=self._stats,
            stop=self._stops.found or "",
        )
