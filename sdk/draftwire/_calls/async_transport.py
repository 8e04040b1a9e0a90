"""Calls of the asyncio client, on grpc.aio."""

# ruff: noqa: ASYNC109 (the timeout is the call's deadline, which the service sees)

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from draftwire._auth.security import Security
from draftwire._calls.call_span import CallSpan, Metadata, begin_call_span
from draftwire._calls.channel import AsyncChannels
from draftwire._calls.deadline import Deadline, check_deadline, describe_deadline
from draftwire._calls.endpoints import Endpoints
from draftwire._calls.error_messages import KINDS, explain, is_missing, wrong_service
from draftwire._calls.failover import Attempts, RetryPolicy, deadline_after, is_loss, remaining
from draftwire._calls.spreading import SpreadPolicy
from draftwire._calls.upkeep import AsyncUpkeep, failure_of
from draftwire._messages.methods import Method, has_receipt
from draftwire._messages.off_loop import is_large, off_loop
from draftwire._messages.reading import Reader
from draftwire._types.address import check_address
from draftwire._types.generation import Generation
from draftwire._types.verifier import Verifier, VerifierStatus
from draftwire.errors import DraftwireError, InternalError, NumericsMismatchError, RequestCancelledError

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
ItemT = TypeVar("ItemT")


class AsyncTransport:
    """Makes calls to the verifiers of a client, on one event loop."""

    def __init__(
        self,
        verifiers: tuple[Verifier, ...],
        *,
        timeout: float | None,
        retry: RetryPolicy,
        spread: SpreadPolicy,
        security: Security,
    ) -> None:
        """Creates a transport without a connection."""
        self._endpoints = Endpoints(verifiers, spread)
        self._timeout = timeout
        self._retry = retry
        self._channels = AsyncChannels(security)
        self._upkeep = AsyncUpkeep(self._endpoints, self._channels)

    @property
    def address(self) -> str:
        """Address of the verifier in use."""
        return self._endpoints.current

    @property
    def closed(self) -> bool:
        """Whether the client is closed."""
        return self._channels.closed

    async def call(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT | partial[RequestT],
        timeout: float | None = None,
        *,
        address: str | None = None,
    ) -> ResponseT:
        """Makes a unary call to a verifier, or to the service at an address, and returns its response.

        A request may be given as the ``partial`` that makes it, whose arguments may be large.
        """
        deadline = self.deadline(timeout)
        encoded = await off_loop(partial(self.encoded, request), large=is_large(request))
        if address is None:
            await self._upkeep.look_up(deadline)
        else:
            check_address(address)
        endpoints = self._endpoints if address is None else Endpoints((Verifier(address),), look_up=False)
        attempts = Attempts(endpoints, self._retry, repeatable=method.repeatable, stays=method.stays)
        while True:
            to = attempts.next_address()
            rpc: Any = self._channels.get(to, self._endpoints.authority(to)).unary_unary(method.path)
            self._upkeep.refresh()
            try:
                metadata = self._channels.metadata()
                response: bytes = await rpc(encoded, timeout=remaining(deadline), metadata=metadata)
                attempts.succeeded()
                break
            except (grpc.RpcError, asyncio.CancelledError) as error:
                failure = failure_of(error)
                if self.closed:
                    raise RequestCancelledError("the client was closed", raw=failure.raw) from error
                await self.explain(failure, method, to)
                describe_deadline(failure, deadline, f"before {to} answered", attempts.lost_by)
                wait = attempts.failed(failure, deadline)
            await asyncio.sleep(wait)
            check_deadline(deadline, f"before {to} answered", failure)
            await self._upkeep.look_up(deadline)
        return await off_loop(partial(method.response.FromString, response), large=is_large(response))

    def stream(self, reader: Reader[Any, Any, ItemT], timeout: float | None) -> AsyncStream[ItemT]:
        """Starts a streaming call."""
        return AsyncStream(self, reader, self.deadline(timeout))

    def prepare(self, reader: Reader[Any, Any, Any], attempts: Attempts) -> tuple[str, Any]:
        """Chooses the verifier of a stream's next attempt; returns it, and the request for it, encoded.

        May run in any thread.
        """
        attempts.key = reader.key(self._endpoints.policy.prefix_bytes)
        address = attempts.next_address()
        try:
            return address, self.encoded(reader.next_request(resumable=attempts.replaceable))
        except BaseException:
            attempts.end()
            raise

    def encoded(self, request: Message | partial[Any]) -> Any:
        """Returns a request, or the one that is made, as ``open`` takes it. May run in any thread."""
        return (request() if isinstance(request, partial) else request).SerializeToString()

    def open(
        self,
        method: Method[Any, Any],
        request: Any,
        address: str,
        deadline: float | None,
        metadata: Metadata = (),
    ) -> Any:
        """Starts one attempt of a streaming call and returns grpc's call, with ``read`` and ``cancel``."""
        rpc: Any = self._channels.get(address, self._endpoints.authority(address)).unary_stream(method.path)
        return rpc(request, timeout=remaining(deadline), metadata=(*self._channels.metadata(), *metadata))

    @property
    def restarts(self) -> bool:
        """Whether a request starts over if only verifiers with other numerics are left."""
        return self._retry.on_other_numerics == "restart"

    async def explain(self, failure: DraftwireError, method: Method[Any, Any], address: str) -> None:
        """Makes the error of a failed call describe what happened to the connection."""
        explain(failure, method, address, encrypted=self._channels.encrypted)
        if is_loss(failure) and failure.reason is None and address in self._endpoints.names:
            self._channels.lost(address)
        if is_missing(method, failure):
            asked = (self._has(address, each) for each in KINDS)
            there = dict(zip(KINDS, await asyncio.gather(*asked), strict=True))
            failure.message = wrong_service(method.service, address, there, failure.details)

    async def _has(self, address: str, service: str) -> bool:
        """Returns whether a server has a service, judged by whether it reports the service's health."""
        try:
            await self._upkeep.check(address, service)
        except (grpc.RpcError, asyncio.CancelledError) as error:  # unknown service, or no health service
            failure_of(error)  # raises if this task itself was cancelled
            return False
        return True

    def attempts(self) -> Attempts:
        """Returns the attempts of a new stream."""
        return Attempts(self._endpoints, self._retry)

    def statuses(self) -> list[VerifierStatus]:
        """Returns the client's view of each verifier."""
        return self._endpoints.statuses()

    @property
    def must_look_up(self) -> bool:
        """Whether ``look_up`` has something to do."""
        return self._endpoints.stale

    async def look_up(self, deadline: Deadline | None) -> None:
        """Looks up DNS names, if that is due, until a deadline at most."""
        await self._upkeep.look_up(deadline)

    def refresh(self) -> None:
        """Starts health checks of lost verifiers and new lookups of DNS names, where due."""
        self._upkeep.refresh()

    def deadline(self, timeout: float | None) -> Deadline | None:
        """Returns the time, by ``time.monotonic``, by which a call that begins now must end."""
        return deadline_after(self._timeout if timeout is None else timeout)

    async def close(self) -> None:
        """Cancels running calls and closes the connections."""
        await self._upkeep.close()


class AsyncStream(Generic[ItemT], AsyncIterator[ItemT]):
    """A running call; iterate over it with ``async for``.

    Ending early cancels the call immediately: by ``aclose``, by leaving an ``async with`` block, or by dropping the
    last reference, as ``break`` in an ``async for ... in client.stream(...)`` does. Cancelling the iterating task does,
    too.
    """

    def __init__(self, transport: AsyncTransport, reader: Reader[Any, Any, ItemT], deadline: Deadline | None) -> None:
        """Starts the call. Called by the client; needs a running event loop."""
        self._transport = transport
        self._reader = reader
        self._deadline = deadline
        self._closed = asyncio.Event()
        self._lock = nullcontext()
        self._call: Any = None
        self._address = ""
        self._attempts = transport.attempts()
        self._span: CallSpan | None = None
        self._opening: asyncio.Task[None] | None = None
        if transport.must_look_up or reader.large:
            self._opening = asyncio.create_task(self._look_up_and_open())
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())  # if nobody iterates
        else:
            self._open(*self._prepared())

    def __aiter__(self) -> Self:
        """Returns the stream itself."""
        return self

    async def __anext__(self) -> ItemT:
        """Returns the next item.

        Raises:
            RequestCancelledError: the stream was closed while this call waited.
            DraftwireError: the call failed.
        """
        while not self._reader.finished and not self._closed.is_set():
            try:
                if self._opening is not None:
                    await self._opening
                    self._opening = None
                response = await self._call.read()
                if response is grpc.aio.EOF:
                    raise InternalError("the verifier ended the stream before the request was finished")
                item = await off_loop(partial(self._read, response), large=is_large(response))
            except (grpc.RpcError, asyncio.CancelledError) as error:
                await self._recover(error)
                continue
            except NumericsMismatchError as error:
                self._call.cancel()
                await self._recover(error)
                continue
            except BaseException as error:
                self._give_up(error)
                raise
            if self._reader.finished:
                await self._drain()
                self._end()
            if item is not None:
                self._attempts.succeeded()
                return item
        raise StopAsyncIteration

    def cancel(self) -> None:
        """Cancels the call immediately, if it still runs. Call it on the client's event loop."""
        with self._lock:
            self._closed.set()
            if self._opening is not None:
                self._opening.cancel()
            if self._call is not None:
                self._call.cancel()
        self._end()

    async def aclose(self) -> None:
        """Cancels the call, if it still runs."""
        self.cancel()

    async def __aenter__(self) -> Self:
        """Returns the stream itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the stream."""
        self.cancel()

    def __del__(self) -> None:
        """Cancels the call of a stream that is no longer used."""
        call = getattr(self, "_call", None)
        if call is not None:
            call.cancel()
            self._end()

    def _read(self, response: Any) -> ItemT | None:
        """Returns the item of a response, which is encoded, or a message of a call that is not grpc's. May run in any
        thread."""
        if isinstance(response, bytes):
            response = self._reader.method.response.FromString(response)
        item = self._reader.read(response)
        self._attempts.read(response)
        return item

    def _prepared(self) -> tuple[str, Any]:
        """Returns the verifier of the next attempt, and the request for it. May run in any thread."""
        prepared = self._transport.prepare(self._reader, self._attempts)
        if self._closed.is_set():  # meanwhile, so that nobody else ends the attempt
            self._attempts.end()
        return prepared

    def _open(self, address: str, request: Any, raw: grpc.RpcError | None = None) -> None:
        with self._lock:
            try:
                if self._closed.is_set() or (self._address and self._transport.closed):  # while it waited
                    raise RequestCancelledError("the stream was closed", raw=raw)
                self._address = address
                self._transport.refresh()
                self._span = self._span or begin_call_span(self._reader)
                metadata = self._span.attempt(address) if self._span is not None else ()
                self._call = self._transport.open(self._reader.method, request, address, self._deadline, metadata)
            except BaseException:
                self._attempts.end()
                raise

    async def _look_up_and_open(self, raw: grpc.RpcError | None = None) -> None:
        await self._transport.look_up(self._deadline)
        self._open(*await off_loop(self._prepared, large=self._reader.large), raw)

    async def _recover(self, error: grpc.RpcError | asyncio.CancelledError | NumericsMismatchError) -> None:
        """Starts the next attempt after a failure, or raises the error for the caller."""
        try:
            failure = error if isinstance(error, NumericsMismatchError) else failure_of(error)
            if self._closed.is_set() or self._transport.closed:
                raise RequestCancelledError("the stream was closed", raw=failure.raw) from error
            if failure is not error:
                await self._transport.explain(failure, self._reader.method, self._address)
                describe_deadline(failure, self._deadline, self._progress(), self._attempts.lost_by)
            taken = self._call is not None and has_receipt(await self._call.initial_metadata())
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._attempts.failed(failure, self._deadline, taken=taken)):
                        await self._closed.wait()
                check_deadline(self._deadline, self._progress(), failure)
                await self._look_up_and_open(failure.raw)
            except NumericsMismatchError:
                if not self._reader.begin_anew():
                    raise
                self._attempts.begin_anew()
                await self._look_up_and_open(failure.raw)
        except BaseException as failed:
            self._give_up(failed)
            raise

    def _give_up(self, error: BaseException) -> None:
        """Ends the stream with the caller's error and the partial result."""
        if isinstance(error, DraftwireError):
            error.partial = self._partial(error)
        self._end(error)
        self.cancel()

    def _progress(self) -> str:
        """Returns the call's progress, for the message of a timeout."""
        return f"before {self._address} answered"

    def _partial(self, error: DraftwireError) -> Generation | None:
        """Returns the partial result of a generation request."""
        return None

    def _end(self, error: BaseException | None = None) -> None:
        self._attempts.end()
        if self._span is not None:
            self._span.end(error)

    async def _drain(self) -> None:
        """Lets the call end by itself, so that the service does not see a cancellation."""
        try:
            while await self._call.read() is not grpc.aio.EOF:
                pass
        except (grpc.RpcError, asyncio.CancelledError) as error:  # everything has been read
            failure_of(error)  # raises if this task itself was cancelled
