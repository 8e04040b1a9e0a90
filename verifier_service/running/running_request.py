"""One running request as the event loop sees it: its tokens, text, statistics and events."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

import grpc
import numpy as np

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.verifier_service_pb2 import (
    FinishReason,
    GenerateFinished,
    GenerateResponse,
    GenerateStarted,
    ServedRequest,
    Usage,
)
from draftwire_core.engine.engine.step_result import Finish, SequenceOutcome
from draftwire_core.engine.sampling.log_probs import LIKELIEST, Likeliest, LogProbs
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.pool.drafter.source import drafter_of
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.observability.span import NO_SPAN, Span
from verifier_service.reading.generate_order import GenerateOrder
from verifier_service.running.chunk_parts import PendingChunk
from verifier_service.running.prompt_telling import MOST_ENTRIES, PromptTelling
from verifier_service.running.request_times import RequestTimes
from verifier_service.running.speculation_counts import SpeculationCounts
from verifier_service.running.stop_strings import StopStrings

_LOOKED_AT = 8
"""Tokens at the end of a prompt whose text decides whether the output's first space is one."""


class RunningRequest:
    """Turns the engine's outcomes into events.

    Outcomes that arrive faster than the caller reads are joined into one chunk, or a few if each token has many
    log-probabilities. So the pending events are bounded by the request's own length.
    """

    def __init__(
        self,
        order: GenerateOrder,
        tokenizer: Tokenizer,
        model_fingerprint: str = "",
        numerics: str = "",
        requests: int = 1,
        span: Span = NO_SPAN,
        on_read: Callable[[], None] = lambda: None,
    ):
        """requests: number of requests at the verifier, this one included, reported to the caller. span: of the call;
        receives its events. on_read: called when the caller has taken all but the end of a finished request."""
        self.sequence_id = order.spec.sequence_id
        self.order = order
        self.span = span
        self.tokens = list(order.spec.tokens)
        """Prompt and output committed so far, consistent with the verdicts sent to drafters."""
        self.finished = False
        self._ends = order.spec.eos_token_ids
        self._kept_ends = order.stop_token_ids if order.include_stop else frozenset()
        self._stop_token: int | None = None
        self._tokenizer = tokenizer
        self._model_fingerprint = model_fingerprint
        self._numerics = numerics
        self._requests = requests
        self._on_read = on_read
        before = [] if order.is_answer else order.prompt[-_LOOKED_AT:]
        self._text = tokenizer.stream(special_tokens=order.special_tokens, before=before)
        self._characters = 0
        """Characters of the output's text, before a stop string is removed."""
        self._stops = StopStrings(order.stops, include=order.include_stop)
        self._prompt: PromptTelling | None = None
        if order.echo or order.spec.prompt_logprobs is not None:
            self._prompt = PromptTelling(order.prompt, tokenizer, order.spec.prompt_logprobs)
        self.times = RequestTimes()
        self._cached_tokens = 0
        self._top_ids, self._top_log_probs = array("I"), array("f")
        """The likeliest tokens at the output's last positions, LIKELIEST for each, if the engine reports them."""
        self.speculation = SpeculationCounts(order)
        self._chunk = PendingChunk()
        self._chunks: deque[PendingChunk] = deque()
        """Full chunks that precede `_chunk`."""
        self._finish_reason = FinishReason.FINISH_REASON_UNSPECIFIED
        self._fault: ServiceError | None = None
        self._waiting: asyncio.Future[None] | None = None
        """Done when something has changed for `events`, which waits for it."""
        self._replay()

    def take(self, outcome: SequenceOutcome) -> None:
        """Applies a step's outcome. A stop string may finish the request before the engine does."""
        self.speculation.step(outcome)
        if self.times.began is None:
            self.times.began = outcome.began
        told = outcome.log_probs
        self._cached_tokens = outcome.cached_tokens
        length = len(self.tokens)
        for index, (token, source) in enumerate(zip(outcome.tokens, outcome.sources, strict=True)):
            if source is not None:
                self.speculation.accepted(source, index)
            log_probs = None if told is None else told.part(slice(index, index + 1))
            self._commit(token, None if source is None else drafter_of(source), log_probs)
            if self.finished:
                break
        if outcome.likeliest is not None:
            self._keep_likeliest(outcome.likeliest.part(slice(len(self.tokens) - length)))
        if outcome.rejected:
            self._chunk.add_rejected(outcome.rejected, self._tokenizer)
        if outcome.finish is Finish.FAULT:
            self.fail(_no_numbers())
        elif outcome.finish is Finish.NOTHING_ALLOWED:
            self.fail(
                ServiceError(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    ErrorReason.ERROR_REASON_NOTHING_ALLOWED,
                    f"the request's constraints allow no token at position {outcome.committed_length}",
                )
            )
        elif outcome.finish is not None and not self.finished:
            self._finish(
                FinishReason.FINISH_REASON_LENGTH
                if outcome.finish is Finish.LENGTH
                else FinishReason.FINISH_REASON_STOP
            )
        self._wake()

    def take_prompt(self, told: LogProbs) -> None:
        """Adds the log-probabilities that a step computed for the prompt's next tokens."""
        if np.isnan(told.log_probs).any():
            self.fail(_no_numbers())
        elif self._prompt is not None:
            self._prompt.take(told)
            self._wake()

    def expire(self) -> None:
        """Ends the request with the output so far because its time is over."""
        if not self.finished:
            self._finish(FinishReason.FINISH_REASON_DEADLINE)
            self._wake()

    def fail(self, error: ServiceError) -> None:
        """Ends the request with an error."""
        if not self.finished:
            self._fault = error
            self.finished = True
            self.times.end()
            self._wake()

    async def events(self) -> AsyncIterator[GenerateResponse]:
        """Yields started, the prompt reports, chunks and finished. Raises the ServiceError that ended the request."""
        yield GenerateResponse(
            started=GenerateStarted(
                request_id=self.order.request_id,
                prompt_tokens=self.order.prompt_length,
                seed=self.order.sampling.seed,
                prompt_token_ids=self.order.prompt if self.order.prompt_was_text else (),
                model_fingerprint=self._model_fingerprint,
                requests=self._requests,
                numerics=self._numerics,
                left_out=self.order.left_out,
            )
        )
        while True:
            if self._prompt is not None and self._prompt.ready:
                yield GenerateResponse(prompt=await asyncio.to_thread(self._prompt.next))
            elif self._chunks:
                yield self._chunks.popleft().message(self._tokenizer.texts)
            elif self._chunk.token_ids:
                chunk, self._chunk = self._chunk, PendingChunk()
                yield chunk.message(self._tokenizer.texts)
            elif self._fault is not None:
                raise self._fault
            elif self.finished:
                self._on_read()
                yield GenerateResponse(finished=self._final())
                return
            else:
                self._waiting = asyncio.get_running_loop().create_future()
                await self._waiting

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    @property
    def failed(self) -> bool:
        """Whether the request ended with an error."""
        return self._fault is not None

    @property
    def fault(self) -> ServiceError | None:
        """The error that the request ended with."""
        return self._fault

    @property
    def completion_tokens(self) -> int:
        """Number of output tokens so far, resumed ones included."""
        return len(self.tokens) - self.order.prompt_length

    @property
    def new_tokens(self) -> int:
        """Number of output tokens generated by this request itself."""
        return self.completion_tokens - len(self.order.resumed)

    @property
    def finish_reason(self) -> str:
        """Why the request finished, in a word; empty until then."""
        if self._finish_reason == FinishReason.FINISH_REASON_UNSPECIFIED:
            return ""
        return FinishReason.Name(self._finish_reason).removeprefix("FINISH_REASON_").lower()

    @property
    def usage(self) -> Usage:
        """Tokens and seconds so far."""
        return Usage(
            prompt_tokens=self.order.prompt_length,
            completion_tokens=self.completion_tokens,
            first_token_seconds=self.times.first_token_seconds,
            total_seconds=self.times.total_seconds,
            cached_tokens=self._cached_tokens,
        )

    def served(self, drafters: Sequence[str]) -> ServedRequest:
        """Returns the finished request as followers of the traffic receive it. drafters: those that draft for it."""
        length = self.order.prompt_length
        return ServedRequest(
            prompt_token_ids=self.tokens[:length],
            token_ids=self.tokens[length:],
            speculation=self.speculation.message(),
            drafters=drafters,
            top=LIKELIEST if self._top_ids else 0,
            top_token_ids=self._top_ids,
            top_log_probs=self._top_log_probs,
        )

    def _keep_likeliest(self, found: Likeliest) -> None:
        self._top_ids.extend(found.token_ids.ravel().tolist())
        self._top_log_probs.extend(found.log_probs.ravel().tolist())

    def _replay(self) -> None:
        """Restores the text and stop strings of a resumed request, whose caller has that text already."""
        form = self.order.spec.form
        for index, token in enumerate(self.order.resumed):
            self._read(token, index + 1)
            if not self.finished and form is not None and form.ended and index + 1 == len(self.order.resumed):
                self._finish(FinishReason.FINISH_REASON_STOP)
            if not self.finished and self.order.prompt_length + index + 1 >= self.order.max_length:
                self._finish(FinishReason.FINISH_REASON_LENGTH)
            if self.finished:
                self.tokens = self.tokens[: self.order.prompt_length + index + 1]
                return

    def _read(self, token: int, output_length: int) -> str:
        """Returns the text that became final with the output's next token, and finishes the request if the token ends
        it. output_length: includes that token."""
        text = self._text.push(token) if token not in self._ends or token in self._kept_ends else ""
        self._characters += len(text)
        if self.order.stops:
            text = self._stops.push(text, ends=self._may_stop(output_length))
        if token in self._ends:
            self._stop_token = token
        if token in self._ends or self._stops.found is not None:
            self._finish(FinishReason.FINISH_REASON_STOP)
        return text

    def _commit(self, token: int, drafter: str | None, log_probs: LogProbs | None) -> None:
        self.times.token()
        self.tokens.append(token)
        chunk = self._chunk
        chunk.add(token, self._tokenizer.shown(token), drafter, self._characters)
        chunk.text += self._read(token, len(self.tokens) - self.order.prompt_length)
        if log_probs is not None:
            chunk.log_probs.append(log_probs)
            if len(chunk.log_probs) * (1 + (self.order.spec.logprobs or 0)) >= MOST_ENTRIES:
                self._chunks.append(chunk)
                self._chunk = PendingChunk()

    def _may_stop(self, output_length: int) -> bool:
        """Whether a stop string completed by the output's last token ends the output, at this length."""
        return output_length > self.order.changes.min_tokens

    def _finish(self, reason: FinishReason) -> None:
        self.finished = True
        self._finish_reason = reason
        self.times.end()

    def _final(self) -> GenerateFinished:
        text = ""
        if self._stops.found is None:
            # An incomplete end of the text may complete a stop string only now.
            ends = self._may_stop(len(self.tokens) - self.order.prompt_length)
            text = self._stops.push(self._text.flush(), ends=ends) + self._stops.flush()
            if self._stops.found is not None:
                self._finish_reason = FinishReason.FINISH_REASON_STOP
        return GenerateFinished(
            finish_reason=self._finish_reason,
            text=text,
            usage=self.usage,
            speculation=self.speculation.message(),
            stop=self._stops.found or "",
            stop_token_id=self._stop_token,
        )


def _no_numbers() -> ServiceError:
    return ServiceError(
        grpc.StatusCode.INTERNAL,
        ErrorReason.ERROR_REASON_INTERNAL,
        "the target model computed logits that are not numbers for this request",
    )
