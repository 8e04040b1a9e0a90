"""MessageStream inside one process: a conversation without sockets that ends and fails as one over gRPC does."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Generic, TypeVar

import grpc

from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.rpc.interceptors import is_client_gone, service_error
from draftwire_core.runtime.rpc.message_stream import ClientGone, MessageStream, OneAtATime, StreamBroken

SendT = TypeVar("SendT")
RecvT = TypeVar("RecvT")
MessageT = TypeVar("MessageT")

DEFAULT_BUFFER = 16


class _Pipe(Generic[MessageT]):
    """One direction of a stream: a bounded queue with an end, which is clean or broken."""

    def __init__(self, max_buffered: int) -> None:
        if max_buffered < 1:
            raise ValueError(f"max_buffered must be at least 1, got {max_buffered}")
        self._max_buffered = max_buffered
        self._messages: deque[MessageT] = deque()
        self._changed = asyncio.Condition()
        self._ended = False
        self._fault: StreamBroken | None = None
        self._reader_gone: StreamBroken | None = None

    async def take(self) -> MessageT | None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._messages or self._ended)
            if self._messages:
                self._changed.notify_all()
                return self._messages.popleft()
            if self._fault is not None:
                raise StreamBroken(self._fault.status)
            return None

    async def put(self, message: MessageT) -> None:
        async with self._changed:
            await self._changed.wait_for(
                lambda: len(self._messages) < self._max_buffered or self._ended or self._reader_gone
            )
            gone = self._reader_gone or self._fault
            if gone is not None:
                raise StreamBroken(gone.status)
            if self._ended:
                raise RuntimeError("the stream was closed while a write waited")
            self._messages.append(message)
            self._changed.notify_all()

    async def end(self, fault: StreamBroken | None = None, *, discard: bool = False) -> None:
        """Ends the messages; `discard` also drops those that wait. Only the first end counts."""
        async with self._changed:
            if not self._ended:
                self._ended, self._fault = True, fault
                if discard:
                    self._messages.clear()
                self._changed.notify_all()

    async def refuse(self, gone: StreamBroken) -> None:
        """Makes writes fail from now on, because nobody reads any longer."""
        async with self._changed:
            self._reader_gone = self._reader_gone or gone
            self._changed.notify_all()


class InProcessStream(MessageStream[SendT, RecvT]):
    """One end of a stream; `stream_pair` makes both."""

    def __init__(self, outgoing: _Pipe[SendT], incoming: _Pipe[RecvT], *, is_client: bool) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._is_client = is_client
        self._closed = False
        self._reading = OneAtATime()
        self._writing = OneAtATime()

    async def read(self) -> RecvT | None:
        with self._reading, self._translated():
            return await self._incoming.take()

    async def write(self, message: SendT) -> None:
        if self._closed:
            raise RuntimeError("the stream is closed for writing")
        with self._writing, self._translated():
            await self._outgoing.put(message)

    async def close(self, error: ServiceError | None = None) -> None:
        self._closed = True
        if error is None:
            await self._outgoing.end()
        elif self._is_client:  # as in gRPC, a client's error does not reach the server
            await self.sever(StreamBroken.of(grpc.StatusCode.CANCELLED, "the call was cancelled"))
        else:
            fault = StreamBroken(error.to_status())
            await self._outgoing.end(fault)
            await self._incoming.refuse(fault)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turns a broken stream into ClientGone on the server's side."""
        try:
            yield
        except StreamBroken as fault:
            if self._is_client:
                raise
            raise ClientGone(fault.status) from None

    async def sever(self, fault: StreamBroken) -> None:
        """Breaks both directions, dropping messages in transit, as a lost connection does."""
        for pipe in (self._outgoing, self._incoming):
            await pipe.end(fault, discard=True)
            await pipe.refuse(fault)


def stream_pair(max_buffered: int = DEFAULT_BUFFER) -> tuple[InProcessStream[Any, Any], InProcessStream[Any, Any]]:
    """Returns the client's and the server's end of one stream; each direction holds up to `max_buffered` messages.

    A client that is gone raises ClientGone at the server's end; `in_process_call` also cancels the handler. Raises
    ValueError when max_buffered is less than 1.
    """
    up: _Pipe[Any] = _Pipe(max_buffered)
    down: _Pipe[Any] = _Pipe(max_buffered)
    return InProcessStream(up, down, is_client=True), InProcessStream(down, up, is_client=False)


@asynccontextmanager
async def in_process_call(
    handler: Callable[[MessageStream[Any, Any]], Awaitable[None]], max_buffered: int = DEFAULT_BUFFER
) -> AsyncIterator[InProcessStream[Any, Any]]:
    """Yields the client's side of a call whose handler runs in this process, in a task of its own.

    As in gRPC, the stream ends cleanly when the handler returns, with a ServiceError's status when it raises one, and
    with INTERNAL for any other exception. Closing with an error, `sever`, or leaving the `async with` cancels the
    handler.
    """
    up: _Pipe[Any] = _Pipe(max_buffered)
    down: _Pipe[Any] = _Pipe(max_buffered)
    server = _HandlerStream(down, up, is_client=False)
    task = asyncio.create_task(_handle(handler, server))
    try:
        yield _CallStream(up, down, task)
    finally:
        task.cancel()
        await asyncio.wait({task})


class _CallStream(InProcessStream[SendT, RecvT]):
    """The client's end of a call; breaking it cancels the handler."""

    def __init__(self, outgoing: _Pipe[SendT], incoming: _Pipe[RecvT], task: asyncio.Task[None]) -> None:
        super().__init__(outgoing, incoming, is_client=True)
        self._task = task

    async def sever(self, fault: StreamBroken) -> None:
        await super().sever(fault)
        self._task.cancel()


class _HandlerStream(InProcessStream[SendT, RecvT]):
    """The server's end of a call, which ends cleanly after the handler has returned."""

    async def close(self, error: ServiceError | None = None) -> None:
        if error is None:
            self._closed = True
        else:
            await super().close(error)

    async def finish(self) -> None:
        """Ends the stream after the handler has returned."""
        await self._outgoing.end()
        await self._incoming.refuse(StreamBroken.of(grpc.StatusCode.CANCELLED, "the other side has ended the stream"))


async def _handle(
    handler: Callable[[MessageStream[Any, Any]], Awaitable[None]], server: _HandlerStream[Any, Any]
) -> None:
    """Runs a handler and ends its call, as CallInterceptor does for a real one."""
    try:
        await handler(server)
    except Exception as error:  # noqa: BLE001 - the call ends with it; service_error logs what is unexpected
        if not is_client_gone(error):
            await server.close(service_error(error))
    else:
        await server.finish()
