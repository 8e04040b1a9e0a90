"""The choices of one HTTP request, generated concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from draftwire import (
    AsyncClient,
    AsyncGenerationStream,
    Chunk,
    DraftwireError,
    GenerateOptions,
    Generation,
    Prompt,
    PromptReport,
)
from gateway_service.http.errors import from_draftwire
from gateway_service.http.field_names import FIELD_NAMES, FieldNames
from gateway_service.keys.charge import Charge
from gateway_service.observability.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Order:
    """A choice to be generated from a prompt or a conversation."""

    options: GenerateOptions
    prompt: Prompt | None = None
    messages: Sequence[dict[str, Any]] = ()
    tools: Sequence[dict[str, Any]] = ()
    """Tools that the model is told about, with a conversation."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """The SDK's parameters of the rendering of a conversation."""
    names: FieldNames = FIELD_NAMES
    """Names that the request uses for the fields that an error of this choice may name."""
    prompt_alone: bool = False
    """Whether the caller wants the results for the prompt only, and no token after it."""
    same_prompt: bool = False
    """Whether the choice before has the same prompt, and counts it."""

    def start(self, client: AsyncClient) -> AsyncGenerationStream:
        """Starts generating the choice."""
        if self.prompt is not None:
            return client.stream(self.prompt, **self.options)
        return client.stream_chat(self.messages, tools=self.tools, **self.template, **self.options)


@dataclass(frozen=True, slots=True)
class Event:
    """A chunk of a choice, or its result."""

    index: int
    chunk: Chunk | None
    result: Generation | None
    prompt: PromptReport | None
    """The report on the prompt; sent with the first event of a choice."""
    left_out: Sequence[str] = ()
    """Parts of the output format that are not enforced; sent with every event."""


class GenerationRun:
    """Iterates over the events of all choices as they arrive. Leaving the `with` cancels unfinished choices.

    At most one event per choice waits to be read. Behind it the verifier waits as well, and joins further output.
    """

    def __init__(
        self, client: AsyncClient, orders: Sequence[Order], metrics: Metrics, charge: Charge | None = None
    ) -> None:
        """Stores the orders; entering the `with` starts them. charge: counts their tokens."""
        self._client = client
        self._orders = orders
        self._metrics = metrics
        self._charge = charge
        self._events: asyncio.Queue[Event | Exception] = asyncio.Queue(maxsize=len(orders))
        self._streams: list[AsyncGenerationStream] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._unfinished = len(orders)

    async def __aenter__(self) -> Self:
        """Starts all choices.

        Raises:
            GatewayError: the wire cannot carry an order.
        """
        try:
            for order in self._orders:
                self._streams.append(self._started(order))
        except BaseException:
            self._cancel()
            raise
        self._tasks = [asyncio.create_task(self._read(index, each)) for index, each in enumerate(self._streams)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancels unfinished choices."""
        self._cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def __aiter__(self) -> Self:
        """Returns the run itself."""
        return self

    async def __anext__(self) -> Event:
        """Returns the next event.

        Raises:
            GatewayError: a choice failed, or the key is no longer valid; the caller gives up the others.
        """
        if not self._unfinished:
            raise StopAsyncIteration
        event = await self._events.get()
        if isinstance(event, Exception):
            raise event
        if event.chunk is not None and self._charge is not None:
            self._charge.add_output(event.index, len(event.chunk.token_ids))
        if event.result is not None:
            self._unfinished -= 1
            self._metrics.finished(event.result)
            if self._charge is not None:
                self._charge.finish(event.index, event.result.usage.prompt_tokens)
        return event

    async def results(self) -> list[Generation]:
        """Runs all choices to their ends and returns their results.

        Raises:
            GatewayError: a choice failed.
        """
        found: list[Any] = [None] * len(self._orders)
        async for event in self:
            if event.result is not None:
                found[event.index] = event.result
        return found

    def _started(self, order: Order) -> AsyncGenerationStream:
        try:
            return order.start(self._client)
        except DraftwireError as error:
            raise from_draftwire(error, order.names) from error

    async def _read(self, index: int, stream: AsyncGenerationStream) -> None:
        order = self._orders[index]
        try:
            first = True
            async for chunk in stream:
                prompt = await _prompt(order, stream) if first else None  # before the result, which has the same
                if order.prompt_alone:
                    continue
                await self._events.put(Event(index, chunk, None, prompt, stream.left_out))
                first = False
            result = _without_output(stream.result) if order.prompt_alone else stream.result
            prompt = await _prompt(order, stream) if first else None
            await self._events.put(Event(index, None, result, prompt, stream.left_out))
        except DraftwireError as error:
            failure = from_draftwire(error, order.names)
            failure.__cause__ = error
            await self._events.put(failure)
        except Exception as error:  # noqa: BLE001 - raised again where the events are read
            await self._events.put(error)

    def _cancel(self) -> None:
        for stream in self._streams:
            stream.cancel()
        for task in self._tasks:
            task.cancel()


async def _prompt(order: Order, stream: AsyncGenerationStream) -> PromptReport | None:
    """Returns the report on a prompt. One with log-probabilities takes long to make, so a thread does it."""
    if order.options.get("prompt_logprobs") is None:
        return stream.prompt
    return await asyncio.to_thread(lambda: stream.prompt)


def _without_output(result: Generation) -> Generation:
    """Returns a result as if it had ended with its prompt; the verifier always generates at least one token."""
    usage = replace(result.usage, completion_tokens=0)
    return replace(
        result,
        text="",
        token_ids=[],
        token_texts=[],
        text_offsets=[],
        logprobs=[],
        finish_reason="length",
        stop=None,
        stop_token_id=None,
        usage=usage,
    )
