# Generated from sdk/draftwire/_async/generations.py by scripts/generate_sync.py. Do not edit.

"""The running requests of the synchronous client."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from draftwire._calls.batch import Batch, run_batch
from draftwire._calls.deadline import Deadline
from draftwire._calls.transport import Stream, Transport
from draftwire._messages.reading import GenerationReader
from draftwire._messages.requests import Request
from draftwire._types.generation import Chunk, Generation, PromptReport
from draftwire.errors import DeadlineExceededError, DraftwireError, RequestCancelledError, invalid_field


class GenerationStream(Stream[Chunk]):
    """A running request: iterate over its chunks, then read ``result``. See ``Stream`` for ending it early."""

    def __init__(self, transport: Transport, reader: GenerationReader, deadline: Deadline | None) -> None:
        """Starts the request. Called by ``Client.stream``."""
        self._generation = reader
        super().__init__(transport, reader, deadline)

    @property
    def seed(self) -> int:
        """The seed in use."""
        return self._generation.seed

    @property
    def prompt(self) -> PromptReport | None:
        """The report on the prompt, if the request asked for one; complete from the first chunk on."""
        return self._generation.prompt

    @property
    def left_out(self) -> list[str]:
        """Parts of the output format that are not enforced, from the first chunk on; see ``Generation.left_out``."""
        return self._generation.left_out

    @property
    def finished(self) -> bool:
        """Whether the result is available."""
        return self._generation.finished

    @property
    def result(self) -> Generation:
        """The result, once the stream has ended.

        Raises:
            RuntimeError: the stream has not ended.
        """
        return self._generation.result

    def _progress(self) -> str:
        """Returns the request's progress with a hint for the caller, for the message of a timeout."""
        return f"{self._generation.progress} (max_time ends a request with the text so far)"

    def _partial(self, error: DraftwireError) -> Generation | None:
        return self._generation.partial("deadline" if isinstance(error, DeadlineExceededError) else "error")


class Generations:
    """Runs requests over a transport: one of them, the choices for one prompt, or a batch."""

    def __init__(self, transport: Transport) -> None:
        """Called by ``Client``."""
        self._transport = transport

    def stream(self, request: Request, *, whole: bool = False) -> GenerationStream:
        """Starts a request. ``whole``: the caller sees no chunk before the result."""
        reader = GenerationReader(request, may_begin_anew=whole and self._transport.restarts)
        return GenerationStream(self._transport, reader, self._transport.deadline(request.timeout))

    def choices(self, request: Request, number: int) -> Generation:
        """Runs a request as often as there are choices, and returns the first result with the others in it."""
        requests = request.choices(number)
        if number == 1:
            return _finish(self.stream(request, whole=True))
        batch = Batch(requests)
        self.run(batch, number)
        first: Generation
        first, *further = batch.outcomes()
        return replace(first, further=further)

    def run(self, batch: Batch, max_concurrency: int) -> None:
        """Runs the requests of a batch to completion; cancels the rest after a failure that ends the batch."""
        if max_concurrency < 1:
            raise invalid_field("max_concurrency", f"must be at least 1, got {max_concurrency}")
        run_batch(batch, max_concurrency, partial(self.stream, whole=True), _finish)


def _finish(stream: GenerationStream) -> Generation:
    """Runs a request to completion."""
    with stream:
        for _ in stream:
            pass
        if not stream.finished:
            raise RequestCancelledError("the stream was closed")
    return stream.result
