"""Responses to requests for chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel

from draftwire import Generation, PromptReport
from gateway.choices.generation_run import Event
from gateway.openai.chat_request import ChatRequest
from gateway.openai.logprobs import ChatLogprobs, PromptLogprobs, chat_logprobs, prompt_logprobs
from gateway.openai.response_parts import (
    FinishReason,
    Head,
    SourceReport,
    finish_reason,
    sources,
    stop_reason,
    stream_extras,
)
from gateway.openai.usage import SpeculationReport, UsageReport, speculation_report, usage_report


class AssistantMessage(BaseModel):
    """The assistant's answer."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    """The stop string, the token of stop_token_ids, or "max_time", if one of them ended the answer."""
    seed: int | None = None
    """The seed in use, which reproduces the answer."""


class ChatResponse(BaseModel):
    """The answers to a conversation."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageReport
    speculation: SpeculationReport
    """Statistics of speculation."""
    prompt_logprobs: PromptLogprobs | None = None
    """Log-probabilities of the prompt's tokens, if requested."""


class Delta(BaseModel):
    """The next part of an answer."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(BaseModel):
    """One answer's part of a chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    seed: int | None = None


class ChatChunk(BaseModel):
    """A chunk of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: UsageReport | None = None
    speculation: SpeculationReport | None = None
    """Statistics of speculation, in the last chunk of the last choice."""
    draftwire: SourceReport | None = None
    """Sources of the chunk's tokens."""
    prompt_logprobs: PromptLogprobs | None = None


class ChatWriter:
    """Writes the response to one request."""

    def __init__(self, request: ChatRequest, head: Head) -> None:
        """Starts with nothing written."""
        self._request = request
        self._head = head
        self._begun: set[int] = set()

    def whole(self, results: Sequence[Generation]) -> BaseModel:
        """Returns the response of a request that does not stream."""
        return ChatResponse(
            **self._shared("chat.completion"),
            choices=[self._choice(index, result) for index, result in enumerate(results)],
            usage=usage_report(results, self._request.choices_each),
            speculation=speculation_report(results),
            **self._prompt(results[0].prompt),
        )

    def chunks(self, event: Event, all_results: Sequence[Generation] | None) -> list[BaseModel]:
        """Returns the chunks of an event; the last event comes with the results of all choices."""
        chunks: list[BaseModel] = []
        if event.index not in self._begun:
            self._begun.add(event.index)
            first = self._chunk(event.index, Delta(role="assistant", content=""), {}, **self._prompt(event.prompt))
            chunks.append(first)
        if event.chunk is not None:
            told = sources(self._request, event.chunk)
            logprobs = chat_logprobs(event.chunk.logprobs) if event.chunk.logprobs else None
            if event.chunk.text or logprobs or told:
                extras = stream_extras(self._request, told, None)
                chunks.append(self._chunk(event.index, Delta(content=event.chunk.text), extras, logprobs=logprobs))
        if event.result is not None:
            extras = stream_extras(self._request, None, all_results)
            chunks.append(self._chunk(event.index, Delta(), extras, result=event.result))
        return chunks

    def usage_chunk(self, results: Sequence[Generation]) -> BaseModel:
        """Returns the chunk with only the usage."""
        usage = usage_report(results, self._request.choices_each)
        return ChatChunk(**self._shared("chat.completion.chunk"), choices=[], usage=usage)

    def _choice(self, index: int, result: Generation) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=AssistantMessage(role="assistant", content=result.text, refusal=None),
            logprobs=chat_logprobs(result.logprobs) if self._request.logprobs else None,
            finish_reason=finish_reason(result),
            stop_reason=stop_reason(self._request, result),
            seed=result.seed,
        )

    def _chunk(
        self,
        index: int,
        delta: Delta,
        extras: dict[str, Any],
        *,
        logprobs: ChatLogprobs | None = None,
        result: Generation | None = None,
        **more: Any,
    ) -> ChatChunk:
        ended: dict[str, Any] = {}
        if result is not None:
            ended = {"stop_reason": stop_reason(self._request, result), "seed": result.seed}
        choice = ChunkChoice(
            index=index,
            delta=delta,
            logprobs=logprobs,
            finish_reason=None if result is None else finish_reason(result),
            **ended,
        )
        extras = extras or stream_extras(self._request, None, None)
        return ChatChunk(**self._shared("chat.completion.chunk"), choices=[choice], **extras, **more)

    def _prompt(self, prompt: PromptReport | None) -> dict[str, Any]:
        if prompt is None or self._request.prompt_logprobs is None:
            return {}
        return {"prompt_logprobs": prompt_logprobs(prompt)}

    def _shared(self, kind: str) -> dict[str, Any]:
        head = self._head
        return {
            "id": head.id,
            "object": kind,
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
        }
