"""How the asyncio client makes its calls: the mirror of ``transport``, on grpc.aio."""

# ruff: noqa: ASYNC109 (the timeout is the call's deadline, which the service sees)

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from draftwire.channel import AsyncChannels
from draftwire.errors import InternalError, RequestCancelledError, from_rpc_error
from draftwire.failover import Attempts, Endpoints, RetryPolicy, deadline_after, remaining
from draftwire.methods import Method
from draftwire.reading import Reader

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
ItemT = TypeVar("ItemT")


class AsyncTransport:
    """Makes calls to whichever verifier is in use, on one event loop."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        *,
        timeout: float | None,
        retry: RetryPolicy,
        credentials: grpc.ChannelCredentials | None,
    ) -> None:
        """Connect to nothing yet."""
        self._endpoints = Endpoints(addresses)
        self._timeout = timeout
        self._retry = retry
        self._channels = AsyncChannels(credentials)

    @property
    def address(self) -> str:
        """Address of the verifier in use."""
        return self._endpoints.current

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout: float | None = None
    ) -> ResponseT:
        """Make a unary call and return its response."""
        deadline = self.deadline(timeout)
        attempts = self.attempts(repeatable=method.repeatable)
        while True:
            rpc = self._channels.get(attempts.next_address()).unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            try:
                response: ResponseT = await rpc(request, timeout=remaining(deadline))
                return response
            except grpc.RpcError as error:
                wait = attempts.failed(from_rpc_error(error), deadline)
            except asyncio.CancelledError:
                raise_if_not_ours()
                raise
            await asyncio.sleep(wait)

    def stream(self, reader: Reader[Any, Any, ItemT], timeout: float | None) -> AsyncStream[ItemT]:
        """Begin a streaming call."""
        return AsyncStream(self, reader, self.deadline(timeout))

    def open(self, method: Method[RequestT, ResponseT], request: RequestT, address: str, deadline: float | None) -> Any:
        """Start one attempt of a streaming call; return grpc's call, with ``read`` and ``cancel``."""
        rpc = self._channels.get(address).unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return rpc(request, timeout=remaining(deadline))

    def attempts(self, *, repeatable: bool = True) -> Attempts:
        """Return the attempts of a new call."""
        return Attempts(self._endpoints, self._retry, repeatable=repeatable)

    def deadline(self, timeout: float | None) -> float | None:
        """Return the time, by ``time.monotonic``, at which a call that begins now has to end."""
        return deadline_after(self._timeout if timeout is None else timeout)

    async def close(self) -> None:
        """Cancel what runs and close the connections."""
        await self._channels.close()


class AsyncStream(Generic[ItemT], AsyncIterator[ItemT]):
    """A running call: iterate over it with ``async for``.

    Ending early (``aclose``, leaving an ``async with`` block, or dropping the last reference, as ``break`` in an
    ``async for ... in client.stream(...)`` does) cancels the call at once; so does cancelling the task that iterates.
    """

    def __init__(self, transport: AsyncTransport, reader: Reader[Any, Any, ItemT], deadline: float | None) -> None:
        """Used by the client: start the call. Needs a running event loop."""
        self._transport = transport
        self._reader = reader
        self._deadline = deadline
        self._closed = False
        self._call: Any = None
        self._attempts = transport.attempts()
        self._open()

    def __aiter__(self) -> Self:
        """Return the stream itself."""
        return self

    async def __anext__(self) -> ItemT:
        """Return the next item.

        Raises:
            RequestCancelledError: the stream was closed while this call waited.
            DraftwireError: the call failed.
        """
        while not self._reader.finished and not self._closed:
            try:
                response = await self._call.read()
                if response is grpc.aio.EOF:
                    raise InternalError("the verifier ended the stream before the request was finished")
                item = self._reader.read(response)
            except grpc.RpcError as error:
                await self._recover(error)
                continue
            except BaseException as error:
                was_closed = self._closed
                self.cancel()
                if isinstance(error, asyncio.CancelledError):
                    raise_if_not_ours("the stream was closed" if was_closed else None)
                raise
            if self._reader.finished:
                await self._drain()
            if item is not None:
                self._attempts.succeeded()
                return item
        raise StopAsyncIteration

    def cancel(self) -> None:
        """Cancel the call at once, if it still runs. To be called on the client's event loop."""
        self._closed = True
        if self._call is not None:
            self._call.cancel()

    async def aclose(self) -> None:
        """Cancel the call, if it still runs."""
        self.cancel()

    async def __aenter__(self) -> Self:
        """Return the stream itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the stream."""
        self.cancel()

    def __del__(self) -> None:
        """Cancel the call of a stream that is not used any more."""
        call = getattr(self, "_call", None)
        if call is not None:
            call.cancel()

    def _open(self) -> None:
        address = self._attempts.next_address()
        self._call = self._transport.open(self._reader.method, self._reader.next_request(), address, self._deadline)

    async def _recover(self, error: grpc.RpcError) -> None:
        """Start the next attempt after a failure, or raise the error the caller gets."""
        try:
            await asyncio.sleep(self._attempts.failed(from_rpc_error(error), self._deadline))
            if self._closed:
                raise RequestCancelledError("the stream was closed", raw=error) from error
            self._open()
        except BaseException:
            self.cancel()
            raise

    async def _drain(self) -> None:
        """Let the call end by itself, so that the service does not see it cancelled."""
        try:
            while await self._call.read() is not grpc.aio.EOF:
                pass
        except grpc.RpcError:
            pass  # everything was read already


def raise_if_not_ours(message: str | None = None) -> None:
    """Raise the typed error where a ``CancelledError`` comes from the call and not from cancelling this task.

    grpc.aio reports a call that ended as cancelled, here or by the service, as if the task had been cancelled.
    """
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        raise RequestCancelledError(message or "the call was cancelled by the service") from None
