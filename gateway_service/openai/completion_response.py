"""Responses to requests for completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel

from draftwire import Generation, PromptReport
from gateway_service.choices.generation_run import Event
from gateway_service.http.errors import GatewayError
from gateway_service.openai.completion_request import CompletionRequest
from gateway_service.openai.logprobs import (
    CompletionLogprobs,
    PromptLogprobs,
    completion_logprobs,
    prompt_logprobs,
    with_prompt,
)
from gateway_service.openai.response_parts import (
    FinishReason,
    Head,
    SourceReport,
    finish_reason,
    sources,
    stop_reason,
    stream_extras,
)
from gateway_service.openai.usage import SpeculationReport, UsageReport, speculation_report, usage_report


class CompletionChoice(BaseModel):
    """One completion."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    """The stop string, the token of stop_token_ids, or "max_time", if one of them ended the completion."""
    prompt_logprobs: PromptLogprobs | None = None
    """Log-probabilities of the prompt's tokens, if requested."""
    seed: int | None = None
    """The seed in use, which reproduces the completion."""


class CompletionResponse(BaseModel):
    """Completions; a chunk of a stream has the same shape."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageReport | None = None
    speculation: SpeculationReport | None = None
    """Statistics of speculation."""
    draftwire: SourceReport | None = None
    """In a chunk, the sources of its tokens."""


class CompletionWriter:
    """Writes the response to one request."""

    def __init__(self, request: CompletionRequest, head: Head) -> None:
        """Starts with nothing written."""
        self._request = request
        self._head = head
        self._shifts: dict[int, int] = {}

    def whole(self, results: Sequence[Generation]) -> BaseModel:
        """Returns the response of a request that does not stream."""
        choices = [self._choice(index, result) for index, result in enumerate(results)]
        return self._response(
            choices,
            usage=usage_report(results, self._request.choices_each),
            speculation=speculation_report(results),
        )

    def chunks(self, event: Event, all_results: Sequence[Generation] | None) -> list[BaseModel]:
        """Returns the chunks of an event; the last event comes with the results of all choices."""
        text, logprobs = "", None
        more: dict[str, Any] = {}
        if event.prompt is not None:
            more |= self._prompt_logprobs(event.prompt)
            if self._request.echo:
                text = event.prompt.text
                self._shifts[event.index] = len(text)
                logprobs = self._echoed(event.prompt, None)
        if event.chunk is not None:
            text += event.chunk.text
            if event.chunk.logprobs:
                shift = self._shifts.get(event.index, 0)
                logprobs = completion_logprobs(event.chunk.logprobs, event.chunk.text_offsets, shift)
                if event.prompt is not None:
                    logprobs = self._echoed(event.prompt, logprobs)
        if event.result is not None:
            more |= {"stop_reason": stop_reason(self._request, event.result), "seed": event.result.seed}
        told = sources(self._request, event.chunk)
        if not (text or logprobs or told or more):
            return []
        choice = CompletionChoice(
            index=event.index,
            text=text,
            logprobs=logprobs,
            finish_reason=None if event.result is None else finish_reason(event.result),
            **more,
        )
        return [self._response([choice], **stream_extras(self._request, told, all_results))]

    def usage_chunk(self, results: Sequence[Generation]) -> BaseModel:
        """Returns the chunk with only the usage."""
        return self._response([], usage=usage_report(results, self._request.choices_each))

    def failed(self, error: GatewayError) -> list[BaseModel]:
        """Returns the event with the error that ends a stream."""
        return [error.report]

    def _choice(self, index: int, result: Generation) -> CompletionChoice:
        text, logprobs = result.text, None
        shift = len(result.prompt.text) if self._request.echo and result.prompt else 0
        if self._request.logprobs is not None:
            logprobs = completion_logprobs(result.logprobs, result.text_offsets, shift)
        more: dict[str, Any] = {}
        if result.prompt is not None:
            more = self._prompt_logprobs(result.prompt)
            logprobs = self._echoed(result.prompt, logprobs)
            if self._request.echo:
                text = result.prompt.text + text
        return CompletionChoice(
            index=index,
            text=text,
            logprobs=logprobs,
            finish_reason=finish_reason(result),
            stop_reason=stop_reason(self._request, result),
            seed=result.seed,
            **more,
        )

    def _echoed(self, prompt: PromptReport, logprobs: CompletionLogprobs | None) -> CompletionLogprobs | None:
        """Returns the log-probabilities of an echoed prompt and of the text that follows it."""
        if not (self._request.echo and self._request.logprobs is not None):
            return logprobs
        return with_prompt(prompt, logprobs or completion_logprobs((), (), 0))

    def _prompt_logprobs(self, prompt: PromptReport) -> dict[str, PromptLogprobs]:
        return {} if "prompt_logprobs" not in self._request.given else {"prompt_logprobs": prompt_logprobs(prompt)}

    def _response(self, choices: list[CompletionChoice], **more: Any) -> CompletionResponse:
        head = self._head
        return CompletionResponse(
            id=head.id,
            object="text_completion",
            created=head.created,
            model=head.model,
            system_fingerprint=head.fingerprint,
            choices=choices,
            **more,
        )
