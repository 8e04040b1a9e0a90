"""Concurrent requests of one call: those of a batch, or the choices for one prompt."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any, TypeVar

from draftwire._calls.async_transport import AsyncStream
from draftwire._calls.transport import Stream
from draftwire._messages.requests import Prompt, Request, batch_seeds
from draftwire._types.generation import Generation
from draftwire.errors import (
    ContextExceededError,
    DraftwireError,
    EmptyPromptError,
    RequestCancelledError,
    TokenOutOfRangeError,
)

_OF_ONE_PROMPT = (EmptyPromptError, ContextExceededError, TokenOutOfRangeError)
"""Faults of one prompt, which do not concern the other prompts."""
_PROMPT = re.compile(r"(?<![\w.])(?:prompt|text|token_ids(?:\.ids)?)(?=[:\[]|$)")
"""The prompt's name in errors of its request."""

Outcome = Generation | DraftwireError
StreamT = TypeVar("StreamT", bound=Stream[Any])
AsyncStreamT = TypeVar("AsyncStreamT", bound=AsyncStream[Any])


class Batch:
    """Collects the outcomes of concurrent requests, in whatever order they end."""

    def __init__(
        self, requests: Sequence[Request | DraftwireError], *, named: bool = False, keeps_errors: bool = False
    ) -> None:
        """Creates a batch in which only requests that could not be prepared have ended.

        Args:
            requests: the requests to run, or the errors of those that cannot run.
            named: whether errors name the prompt they belong to.
            keeps_errors: whether errors are returned like results; otherwise a failure stops the rest.
        """
        self.requests = [(index, each) for index, each in enumerate(requests) if isinstance(each, Request)]
        """Requests to run, each with its index."""
        self._named = named
        self._keeps_errors = keeps_errors
        self._outcomes: list[Outcome | None] = [each if isinstance(each, DraftwireError) else None for each in requests]
        self._first: DraftwireError | None = None
        self.stopped = False
        """Whether the running requests are to be cancelled."""

    @classmethod
    def of(
        cls,
        prompts: Iterable[Prompt],
        seed: int | Sequence[int] | None,
        options: Mapping[str, Any],
        *,
        keeps_errors: bool,
    ) -> Batch:
        """Returns the batch for some prompts.

        Raises:
            ValueError: the number of seeds is not the number of prompts.
            TypeError: an option or a prompt has the wrong type; the message names it.
            DraftwireError: a prompt or an option cannot be encoded, and errors are not kept.
        """
        prompts = list(prompts)
        seeds = batch_seeds(seed, len(prompts))
        requests: list[Request | DraftwireError] = []
        for index, (prompt, its_seed) in enumerate(zip(prompts, seeds, strict=True)):
            try:
                request = Request.of(prompt, seed=its_seed, **options)
                request.message  # noqa: B018 - what is wrong with a large one is raised here, before any is sent
                requests.append(request)
            except TypeError as error:
                if not _PROMPT.match(str(error)):
                    raise  # it is about an option, which all prompts share
                raise TypeError(_PROMPT.sub(f"prompts[{index}]", str(error), 1)) from None
            except DraftwireError as error:
                _name(error, index)
                if not keeps_errors:
                    raise
                requests.append(error)
        return cls(requests, named=True, keeps_errors=keeps_errors)

    def take(self, index: int, ended: Callable[[], Generation]) -> None:
        """Records the outcome of a request: ``ended`` returns its result or raises its error."""
        try:
            self._outcomes[index] = ended()
        except DraftwireError as error:
            self._outcomes[index] = error
            if self.stopped and isinstance(error, RequestCancelledError):
                return
            if self._named:
                _name(error, index)
            self._first = self._first or error
            self.stopped = self.stopped or not (
                self._keeps_errors or (self._named and isinstance(error, _OF_ONE_PROMPT))
            )

    def outcomes(self) -> list[Any]:
        """Returns the outcome of each request, in order: results, and errors if they are kept.

        Raises:
            DraftwireError: the first failure; its ``results`` has the outcomes.
        """
        found = [each or RequestCancelledError("another request of the batch failed") for each in self._outcomes]
        if self._first is not None and not self._keeps_errors:
            self._first.results = found if self._named else None
            raise self._first
        return list(found)


def run_batch(
    batch: Batch,
    max_concurrency: int,
    begin: Callable[[Request], StreamT],
    finish: Callable[[StreamT], Generation],
) -> None:
    """Runs the requests of a batch to completion, in threads; cancels the rest after a failure that ends the batch.

    Args:
        batch: the requests; it also collects their outcomes.
        max_concurrency: most requests in flight at a time.
        begin: starts a request.
        finish: reads a request to its end and returns its result.
    """
    if not batch.requests:
        return
    streams: list[StreamT] = []

    def run(request: Request) -> Generation:
        if batch.stopped:
            raise RequestCancelledError("another request of the batch failed")
        stream = begin(request)
        streams.append(stream)
        if batch.stopped:
            stream.close()
        return finish(stream)

    def stop() -> None:
        while streams:
            streams.pop().close()

    pool = ThreadPoolExecutor(max(1, min(max_concurrency, len(batch.requests))), "draftwire-batch")
    futures = {pool.submit(run, request): index for index, request in batch.requests}
    try:
        for future in as_completed(futures):
            batch.take(futures[future], future.result)
            if batch.stopped:
                stop()
    finally:
        batch.stopped = True
        pool.shutdown(wait=False, cancel_futures=True)
        stop()


async def run_batch_async(
    batch: Batch,
    max_concurrency: int,
    begin: Callable[[Request], AsyncStreamT],
    finish: Callable[[AsyncStreamT], Awaitable[Generation]],
) -> None:
    """Runs the requests of a batch to completion, in tasks; otherwise like ``run_batch``."""
    slots = asyncio.Semaphore(max(1, max_concurrency))
    streams: list[AsyncStreamT] = []

    async def run(request: Request) -> Generation:
        async with slots:
            if batch.stopped:
                raise RequestCancelledError("another request of the batch failed")
            streams.append(stream := begin(request))
            return await finish(stream)

    tasks = {asyncio.create_task(run(request)): index for index, request in batch.requests}
    done: asyncio.Queue[asyncio.Task[Generation]] = asyncio.Queue()  # asyncio.wait looks at all, each time
    for task in tasks:
        task.add_done_callback(done.put_nowait)
    try:
        for _ in tasks:
            task = await done.get()
            batch.take(tasks[task], task.result)
            while batch.stopped and streams:
                streams.pop().cancel()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _name(error: DraftwireError, index: int) -> None:
    """Adds the prompt's place in the batch to an error."""
    name = f"prompts[{index}]"
    of_prompt = [bool(_PROMPT.match(each.parameter or each.field)) for each in error.field_violations]
    error.field_violations = tuple(
        replace(each, field=_PROMPT.sub(name, each.parameter or each.field, 1), parameter="") if its_own else each
        for each, its_own in zip(error.field_violations, of_prompt, strict=True)
    )
    if any(of_prompt):
        error.message = _PROMPT.sub(name, error.message, 1)
    if name not in error.message:
        error.message = f"{name}: {error.message}"
