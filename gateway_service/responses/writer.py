"""Writes responses, whole or as events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from draftwire import Generation
from gateway_service.answers.answer_plan import AnswerPlan
from gateway_service.choices.generation_run import Event
from gateway_service.http.errors import GatewayError
from gateway_service.http.event_stream import NamedEvent
from gateway_service.openai.fields.whole_numbers import limit_of
from gateway_service.openai.response_parts import Head, is_cut_off
from gateway_service.openai.usage import SpeculationReport, speculation_report, usage_report
from gateway_service.responses.items import OutputItems
from gateway_service.responses.request import ResponsesRequest


class IncompleteDetails(BaseModel):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseError(BaseModel):
    """Why a response failed."""

    code: str
    message: str


class ResponseUsage(BaseModel):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseObject(BaseModel):
    """A response."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    model: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    output: list[dict[str, Any]]
    """Items: reasoning, message, function_call."""
    parallel_tool_calls: bool
    temperature: float
    top_p: float
    text: dict[str, Any]
    """Form of the text, by which LangChain knows that the text of a stream has one."""
    tool_choice: Any
    tools: list[Any]
    store: Literal[False] = False
    usage: ResponseUsage | None = None
    seed: int | None = None
    """The seed in use, which reproduces the response."""
    speculation: SpeculationReport | None = None
    """Statistics of speculation."""


class ResponseEvent(NamedEvent):
    """An event of a response; further fields by its type."""

    model_config = ConfigDict(extra="allow")

    sequence_number: int


class ResponsesWriter:
    """Writes the response to one request."""

    def __init__(self, request: ResponsesRequest, head: Head, plan: AnswerPlan) -> None:
        """Starts with nothing written."""
        self._request = request
        self._head = head
        self._parser = plan.parser()
        self._items = OutputItems(plan, head.id, request.namespaced)
        self._number = 0

    def whole(self, results: Sequence[Generation]) -> BaseModel:
        """Returns the response of a request that does not stream."""
        (result,) = results
        self._items.push([*self._parser.push(result.text), *self._parser.end(cut=is_cut_off(result))])
        return self._ended(result)

    def chunks(self, event: Event, all_results: Sequence[Generation] | None) -> list[BaseModel]:
        """Returns the events of an event of the generation."""
        events: list[BaseModel] = []
        if not self._number:
            begun = self._response("in_progress")
            events += [self._event(name, response=begun) for name in ("response.created", "response.in_progress")]
        if event.chunk is not None:
            events += [
                self._event(name, **each) for name, each in self._items.push(self._parser.push(event.chunk.text))
            ]
        if event.result is not None:
            rest = self._parser.end(cut=is_cut_off(event.result))
            events += [self._event(name, **each) for name, each in self._items.push(rest)]
            complete = event.result.finish_reason == "stop"
            ends = self._items.end("completed" if complete else "incomplete")
            events += [self._event(name, **each) for name, each in ends]
            name = "response.completed" if complete else "response.incomplete"
            events.append(self._event(name, response=self._ended(event.result)))
        return events

    def usage_chunk(self, results: Sequence[Generation]) -> BaseModel:
        """Returns the response again; its last event has the usage, so none is asked for."""
        return self._ended(results[0])

    def failed(self, error: GatewayError) -> list[BaseModel]:
        """Returns the events with the error that ends a stream, under OpenAI's names: Codex reads the response, other
        clients the last one, in which OpenAI's own look for `error` and others for its type."""
        report = error.report
        told = ResponseError(code=error.code or report.error.type, message=report.error.message)
        return [
            self._event("response.failed", response=self._response("failed", error=told)),
            self._event("error", **report.error.model_dump(exclude={"type"}), **dict(report)),
        ]

    def _ended(self, result: Generation) -> ResponseObject:
        complete = result.finish_reason == "stop"
        self._items.end("completed" if complete else "incomplete")
        usage = usage_report([result], 1)
        return self._response(
            "completed" if complete else "incomplete",
            incomplete_details=None if complete else IncompleteDetails(reason="max_output_tokens"),
            usage=ResponseUsage(
                input_tokens=usage.prompt_tokens,
                input_tokens_details={"cached_tokens": usage.prompt_tokens_details.cached_tokens},
                output_tokens=usage.completion_tokens,
                output_tokens_details={"reasoning_tokens": 0},
                total_tokens=usage.total_tokens,
            ),
            seed=result.seed,
            speculation=speculation_report([result]),
        )

    def _response(
        self, status: Literal["in_progress", "completed", "incomplete", "failed"], **more: Any
    ) -> ResponseObject:
        asked = self._request
        form = None if asked.text is None else asked.text.format
        told: dict[str, Any] = {"error": None, "incomplete_details": None, "usage": None} | more
        return ResponseObject(
            id=self._head.id,
            object="response",
            created_at=self._head.created,
            model=self._head.model,
            status=status,
            instructions=asked.instructions,
            max_output_tokens=limit_of(asked.max_output_tokens),
            output=[dict(item) for item in self._items.items],
            parallel_tool_calls=asked.parallel_tool_calls is not False,
            temperature=_or_one(asked.given.get("temperature")),
            top_p=_or_one(asked.given.get("top_p")),
            text={"format": {"type": "text"} if form is None else form.model_dump(by_alias=True, exclude_unset=True)},
            tool_choice=asked.tool_choice if isinstance(asked.tool_choice, BaseModel) else asked.tool_choice or "auto",
            tools=[tool.model_dump() for _, tool in asked.functions.values()],
            store=False,
            **told,
        )

    def _event(self, name: str, /, **fields: Any) -> ResponseEvent:
        number, self._number = self._number, self._number + 1
        return ResponseEvent(type=name, sequence_number=number, **fields)


def _or_one(number: float | None) -> float:
    return 1.0 if number is None else number
