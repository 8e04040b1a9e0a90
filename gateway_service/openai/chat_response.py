"""Responses to requests for chat completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel

from draftwire import Generation, PromptReport
from gateway_service.answers.answer import Answer
from gateway_service.answers.answer_plan import AnswerPlan
from gateway_service.answers.part import AnswerParser, CallArguments, CallStart, Content, Part, Reasoning, joined
from gateway_service.choices.generation_run import Event
from gateway_service.http.errors import GatewayError
from gateway_service.openai.chat_request import ChatRequest
from gateway_service.openai.logprobs import ChatLogprobs, PromptLogprobs, chat_logprobs, prompt_logprobs
from gateway_service.openai.response_parts import (
    ChatFinish,
    Head,
    SourceReport,
    chat_finish,
    is_cut_off,
    sources,
    stop_reason,
    stream_extras,
)
from gateway_service.openai.usage import SpeculationReport, UsageReport, speculation_report, usage_report


class AnsweredFunction(BaseModel):
    """The function of a call."""

    name: str
    arguments: str


class AnsweredCall(BaseModel):
    """A call of a tool."""

    id: str
    type: Literal["function"] = "function"
    function: AnsweredFunction


class AssistantMessage(BaseModel):
    """The assistant's answer."""

    role: Literal["assistant"]
    content: str | None
    """Text of the answer; null if it consists of calls."""
    refusal: None
    reasoning_content: str | None = None
    """The reasoning before the answer, if the model has any."""
    tool_calls: list[AnsweredCall] | None = None
    """The calls that the answer makes, if any."""


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish
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


class FunctionDelta(BaseModel):
    """The next part of a call's function."""

    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(BaseModel):
    """The next part of a call: first its id and name, then pieces of its arguments."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(BaseModel):
    """The next part of an answer."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(BaseModel):
    """One answer's part of a chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None
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

    def __init__(self, request: ChatRequest, head: Head, plan: AnswerPlan) -> None:
        """Starts with nothing written. plan: how the answers are read."""
        self._request = request
        self._head = head
        self._plan = plan
        self._streams: dict[int, AnswerParser] = {}
        """Parsers of the answers that have begun."""
        self._calling: set[int] = set()
        """Answers with calls."""

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
        index = event.index
        if index not in self._streams:
            self._streams[index] = self._plan.parser()
            first = self._chunk(index, Delta(role="assistant", content=""), {}, **self._prompt(event.prompt))
            chunks.append(first)
        if event.chunk is not None:
            told = sources(self._request, event.chunk)
            logprobs = chat_logprobs(event.chunk.logprobs) if event.chunk.logprobs else None
            deltas = self._deltas(index, self._streams[index].push(event.chunk.text))
            if not deltas and (logprobs or told):
                deltas = [Delta(content="")]
            for delta in deltas:  # what belongs to the tokens comes with the first delta
                extras = stream_extras(self._request, told, None)
                chunks.append(self._chunk(index, delta, extras, logprobs=logprobs))
                told = logprobs = None
        if event.result is not None:
            for delta in self._deltas(index, self._streams[index].end(cut=is_cut_off(event.result))):
                chunks.append(self._chunk(index, delta, {}))
            extras = stream_extras(self._request, None, all_results)
            chunks.append(self._chunk(index, Delta(), extras, result=event.result))
        return chunks

    def usage_chunk(self, results: Sequence[Generation]) -> BaseModel:
        """Returns the chunk with only the usage."""
        usage = usage_report(results, self._request.choices_each)
        return ChatChunk(**self._shared("chat.completion.chunk"), choices=[], usage=usage)

    def failed(self, error: GatewayError) -> list[BaseModel]:
        """Returns the event with the error that ends a stream."""
        return [error.report]

    def _deltas(self, index: int, parts: Sequence[Part]) -> list[Delta]:
        """Returns the deltas of parts of an answer."""
        deltas: list[Delta] = []
        for part in joined(parts):
            match part:
                case Content(text):
                    deltas.append(Delta(content=text))
                case Reasoning(text):
                    deltas.append(Delta(reasoning_content=text))
                case CallStart(number, name):
                    self._calling.add(index)
                    call = ToolCallDelta(
                        index=number,
                        id=self._call_id(index, number),
                        type="function",
                        function=FunctionDelta(name=name, arguments=""),
                    )
                    deltas.append(Delta(tool_calls=[call]))
                case CallArguments(number, text):
                    call = ToolCallDelta(index=number, function=FunctionDelta(arguments=text))
                    deltas.append(Delta(tool_calls=[call]))
        return deltas

    def _choice(self, index: int, result: Generation) -> ChatChoice:
        answer = Answer.read(self._plan.parser(), result.text, cut=is_cut_off(result))
        calls = [
            AnsweredCall(
                id=self._call_id(index, number),
                type="function",
                function=AnsweredFunction(name=call.name, arguments=call.arguments),
            )
            for number, call in enumerate(answer.calls)
        ]
        told: dict[str, Any] = {"reasoning_content": answer.reasoning} if answer.reasoning else {}
        if calls:
            told["tool_calls"] = calls
        content = None if calls and not answer.content else answer.content
        return ChatChoice(
            index=index,
            message=AssistantMessage(role="assistant", content=content, refusal=None, **told),
            logprobs=chat_logprobs(result.logprobs) if self._request.logprobs else None,
            finish_reason=chat_finish(result, calls=bool(calls)),
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
            finish_reason=None if result is None else chat_finish(result, calls=index in self._calling),
            **ended,
        )
        extras = extras or stream_extras(self._request, None, None)
        return ChatChunk(**self._shared("chat.completion.chunk"), choices=[choice], **extras, **more)

    def _call_id(self, index: int, number: int) -> str:
        return self._plan.call_id(f"{self._head.id} {index}", number)

    def _prompt(self, prompt: PromptReport | None) -> dict[str, Any]:
        if prompt is None or "prompt_logprobs" not in self._request.given:
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
