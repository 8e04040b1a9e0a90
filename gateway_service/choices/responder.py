"""The responder, which admits a request, generates its choices, and makes the response, whole or streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Protocol, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from draftwire import AsyncClient, Chunk, GenerateOptions, Generation, PromptReport
from draftwire_core.runtime.process.logs import get_logger
from gateway_service.answers.answer_plan import AnswerPlan
from gateway_service.answers.checked.argument_checks import ArgumentChecks, tools_of
from gateway_service.choices.admission import Admission
from gateway_service.choices.generation_run import Event, GenerationRun, Order
from gateway_service.http.connection import until_disconnect
from gateway_service.http.errors import GatewayError
from gateway_service.http.event_stream import DONE, EventStream, event
from gateway_service.http.left_out import VIOLATIONS, LeftOut, sendable
from gateway_service.keys.charge import Charge, ChoiceSize
from gateway_service.keys.grant import Grant
from gateway_service.observability.metrics import Metrics
from gateway_service.settings import GatewaySettings

log = get_logger(__name__)

CACHED = "x-draftwire-cached-tokens"
"""Header with the number of prompt tokens that were found in the prefix cache; a stream has it in its usage."""
_MANY = 4096
"""Log-probabilities from which a response is written next to the event loop: some ten milliseconds of work."""
_BYTES_OF_TOKEN = 4
"""Bytes of a text that are one token, by estimate, until the verifier has counted."""


T = TypeVar("T")


class Writer(Protocol):
    """Writes a request's results in the shape of its endpoint."""

    def whole(self, results: Sequence[Generation]) -> BaseModel:
        """Returns the response of a request that does not stream; only fields that are set are sent."""

    def chunks(self, event: Event, all_results: Sequence[Generation] | None) -> list[BaseModel]:
        """Returns the chunks of one event; the last event comes with the results of all choices."""

    def usage_chunk(self, results: Sequence[Generation]) -> BaseModel:
        """Returns the chunk with the usage and no choice."""

    def failed(self, error: GatewayError) -> list[BaseModel]:
        """Returns the events with the error that ends a stream."""


class Responder:
    """Responds to all requests, within one limit on the choices generated at once."""

    def __init__(self, settings: GatewaySettings, metrics: Metrics, checks: ArgumentChecks) -> None:
        """Starts without requests. checks: of the arguments of calls."""
        self._most_choices = settings.max_choices
        self._seconds = settings.request_seconds
        self._metrics = metrics
        self._checks = checks
        self._admission = Admission(settings.max_generations, metrics)
        self._thread = ThreadPoolExecutor(1, "gateway-responses")

    def close(self) -> None:
        """Ends the thread that writes large responses."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def respond(
        self,
        client: AsyncClient,
        request: Request,
        orders: Sequence[Order],
        writer: Writer,
        left_out: Sequence[str] = (),
        plan: AnswerPlan | None = None,
    ) -> Response:
        """Returns the response with all choices. client: of the verifiers that generate. left_out: names of the parts
        of the request that were left out. plan: how answers are read, if they may have calls.

        Raises:
            GatewayError: there is no room, or a choice failed.
            ClientLeft: the client closed the connection.
        """
        with _charged(request, orders) as charge, self._admission.taken(len(orders)):
            results = await until_disconnect(request.receive, self._run(client, named(orders, request), charge))
        told_of = [part for result in results for part in (result, result.prompt)]
        text = await self._written(told_of, lambda: writer.whole(results).model_dump_json(exclude_unset=True))
        response = Response(text, media_type="application/json")
        firsts = (result for order, result in zip(orders, results, strict=True) if not order.same_prompt)
        response.headers[CACHED] = str(sum(result.usage.cached_tokens for result in firsts))
        told = LeftOut(request, left_out)
        for result in results:
            told.add(result.left_out)
        told.tell(response)
        if plan is not None and (texts := _with_calls(results)):
            tools = tools_of(results[0].left_out)
            violations = await self._checks.violations(request.state.request_id, plan, texts, tools)
            if violations:
                response.headers[VIOLATIONS] = ", ".join(sendable(violations))
        return response

    def stream(
        self,
        client: AsyncClient,
        request: Request,
        orders: Sequence[Order],
        writer: Writer,
        usage: bool,
        left_out: Sequence[str] = (),
        plan: AnswerPlan | None = None,
    ) -> Response:
        """Returns the response that streams the choices as they arrive, and then, if requested, the usage. client,
        left_out, plan: as for `respond`."""
        told = LeftOut(request, left_out)
        events = self._events(client, request, named(orders, request), writer, usage, told, plan)
        return EventStream(
            events,
            lambda error: [*map(event, writer.failed(error)), DONE],
            self._seconds,
            self._metrics,
            told.tell,
        )

    def check_count(self, param: str, count: int) -> None:
        """Refuses too many choices, and none.

        Raises:
            GatewayError: there are too many, or there is none.
        """
        if not count:
            raise GatewayError(f"{param}: is empty", param=param, code="invalid_value")
        if count > self._most_choices:
            raise GatewayError(
                f"{param}: must ask for 1 to {self._most_choices} choices, got {count}",
                param=param,
                code="invalid_value",
            )

    async def _written(self, parts: Sequence[Generation | Chunk | PromptReport | None], write: Callable[[], T]) -> T:
        """Returns what `write` makes of parts, in the thread if they have many log-probabilities."""
        many = sum(_log_probs(part) for part in parts if part is not None) >= _MANY
        return await asyncio.get_running_loop().run_in_executor(self._thread, write) if many else write()

    async def _run(self, client: AsyncClient, orders: Sequence[Order], charge: Charge | None) -> list[Generation]:
        async with GenerationRun(client, orders, self._metrics, charge) as run:
            return await run.results()

    async def _events(
        self,
        client: AsyncClient,
        request: Request,
        orders: Sequence[Order],
        writer: Writer,
        usage: bool,
        told: LeftOut,
        plan: AnswerPlan | None,
    ) -> AsyncGenerator[bytes, None]:
        results: dict[int, Generation] = {}
        with _charged(request, orders) as charge, self._admission.taken(len(orders)):
            async with GenerationRun(client, orders, self._metrics, charge) as run:
                async for each in run:
                    told.add(each.left_out)
                    if each.result is not None:
                        results[each.index] = each.result
                    everything = [results[i] for i in range(len(orders))] if len(results) == len(orders) else None
                    write = _events_of(writer, each, everything)
                    for data in await self._written((each.chunk, each.prompt), write):
                        yield data
        if plan is not None and (texts := _with_calls(list(results.values()))):
            self._checks.begin(request.state.request_id, plan, texts, tools_of(results[0].left_out))
        if usage:
            yield event(writer.usage_chunk([results[index] for index in range(len(orders))]))
        yield DONE


def _events_of(writer: Writer, each: Event, results: Sequence[Generation] | None) -> Callable[[], list[bytes]]:
    return lambda: [event(chunk) for chunk in writer.chunks(each, results)]


def _log_probs(part: Generation | Chunk | PromptReport) -> int:
    """Returns the number of log-probabilities of a part: all positions have as many, except a prompt's first."""
    last = part.logprobs[-1] if part.logprobs else None
    return 0 if last is None else len(part.logprobs) * (1 + len(last.top))


def _charged(request: Request, orders: Sequence[Order]) -> AbstractContextManager[Charge | None]:
    """Returns the charge of a request to the account of its key, if that is a named one."""
    grant: Grant | None = request.state.grant
    if grant is None:
        return nullcontext()
    return Charge(grant, request.state.model, [_size(order, request.state.body_bytes) for order in orders])


def _size(order: Order, body_bytes: int) -> ChoiceSize:
    """Returns the estimated size of a choice. The verifier alone knows how many tokens a text has."""
    if order.prompt is None:
        prompt = body_bytes // _BYTES_OF_TOKEN
    elif isinstance(order.prompt, str):
        prompt = len(order.prompt.encode(errors="replace")) // _BYTES_OF_TOKEN
    else:
        prompt = len(order.prompt)
    most = 0 if order.prompt_alone else order.options.get("max_tokens")
    return ChoiceSize(0 if order.same_prompt else max(1, prompt), most)


def _with_calls(results: Sequence[Generation]) -> list[str]:
    """Returns the texts of complete answers whose calls have to be checked."""
    complete = [result for result in results if result.finish_reason == "stop"]
    return [result.text for result in complete if tools_of(result.left_out)]


def named(orders: Sequence[Order], request: Request) -> list[Order]:
    """Returns the orders with ids made from the request's id, for the verifier's log."""
    name = request.state.request_id
    return [
        replace(order, options=GenerateOptions(**order.options, request_id=f"{name}-{index}"))
        for index, order in enumerate(orders)
    ]
