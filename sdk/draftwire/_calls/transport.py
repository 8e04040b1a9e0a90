# Generated from sdk/draftwire/_calls/async_transport.py by scripts/generate_sync.py. Do not edit.

"""Calls of the synchronous client.

They use grpc's sync channels, not an event loop on a hidden thread. Sync channels can be shared between threads,
``cancel`` takes effect immediately from any thread, Ctrl-C works, and there is no event loop to start or stop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc
from google.protobuf.message import Message

from draftwire._auth.security import Security
from draftwire._calls.call_span import CallSpan, Metadata, begin_call_span
from draftwire._calls.channel import Channels
from draftwire._calls.deadline import Deadline, check_deadline, describe_deadline
from draftwire._calls.endpoints import Endpoints
from draftwire._calls.error_messages import KINDS, explain, is_missing, wrong_service
from draftwire._calls.failover import Attempts, RetryPolicy, deadline_after, is_loss, remaining
from draftwire._calls.spreading import SpreadPolicy
from draftwire._calls.upkeep import Upkeep
from draftwire._messages.methods import Method, has_receipt
from draftwire._messages.reading import Reader
from draftwire._types.address import check_address
from draftwire._types.generation import Generation
from draftwire._types.verifier import Verifier, VerifierStatus
from draftwire.errors import DraftwireError, InternalError, NumericsMismatchError, RequestCancelledError, from_rpc_error

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
ItemT = TypeVar("ItemT")


class Transport:
    """Makes calls to the verifiers of a client. Safe to use from several threads."""

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
        self._channels = Channels(security)
        self._upkeep = Upkeep(self._endpoints, self._channels)

    @property
    def address(self) -> str:
        """Address of the verifier in use."""
        return self._endpoints.current

    @property
    def closed(self) -> bool:
        """Whether the client is closed."""
        return self._channels.closed

    def call(
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
        encoded = self.encoded(request)
        if address is None:
            self._upkeep.look_up(deadline)
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
                response: bytes = rpc(encoded, timeout=remaining(deadline), metadata=metadata)
                attempts.succeeded()
                break
            except grpc.RpcError as error:
                failure = from_rpc_error(error)
                if self.closed:
                    raise RequestCancelledError("the client was closed", raw=failure.raw) from error
                self.explain(failure, method, to)
                describe_deadline(failure, deadline, f"before {to} answered", attempts.lost_by)
                wait = attempts.failed(failure, deadline)
            time.sleep(wait)
            check_deadline(deadline, f"before {to} answered", failure)
            self._upkeep.look_up(deadline)
        return method.response.FromString(response)

    def stream(self, reader: Reader[Any, Any, ItemT], timeout: float | None) -> Stream[ItemT]:
        """Starts a streaming call."""
        return Stream(self, reader, self.deadline(timeout))

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
        """Starts one attempt of a streaming call and returns grpc's call, an iterator with ``cancel``."""
        rpc: Any = self._channels.get(address, self._endpoints.authority(address)).unary_stream(method.path)
        return rpc(request, timeout=remaining(deadline), metadata=(*self._channels.metadata(), *metadata))

    @property
    def restarts(self) -> bool:
        """Whether a request starts over if only verifiers with other numerics are left."""
        return self._retry.on_other_numerics == "restart"

    def explain(self, failure: DraftwireError, method: Method[Any, Any], address: str) -> None:
        """Makes the error of a failed call describe what happened to the connection."""
        explain(failure, method, address, encrypted=self._channels.encrypted)
        if is_loss(failure) and failure.reason is None and address in self._endpoints.names:
            self._channels.lost(address)
        if is_missing(method, failure):
            asked = (self._has(address, each) for each in KINDS)
            there = dict(zip(KINDS, asked, strict=True))
            failure.message = wrong_service(method.service, address, there, failure.details)

    def _has(self, address: str, service: str) -> bool:
        """Returns whether a server has a service, judged by whether it reports the service's health."""
        try:
            self._upkeep.check(address, service)
        except grpc.RpcError:  # unknown service, or no health service
            return False
        return True

    def attempts(self) -> Attempts:
        """Returns the attempts of a new stream."""
        return Attempts(self._endpoints, self._retry)

    def statuses(self) -> list[VerifierStatus]:
        """Returns the client's view of each verifier."""
        return self._endpoints.statuses()

    def look_up(self, deadline: Deadline | None) -> None:
        """Looks up DNS names, if that is due, until a deadline at most."""
        self._upkeep.look_up(deadline)

    def refresh(self) -> None:
        """Starts health checks of lost verifiers and new lookups of DNS names, where due."""
        self._upkeep.refresh()

    def deadline(self, timeout: float | None) -> Deadline | None:
        """Returns the time, by ``time.monotonic``, by which a call that begins now must end."""
        return deadline_after(self._timeout if timeout is None else timeout)

    def close(self) -> None:
        """Cancels running calls and closes the connections."""
        self._upkeep.close()


class Stream(Generic[ItemT], Iterator[ItemT]):
    """A running call; iterate over it.

    Ending early cancels the call immediately: by ``close``, by leaving a ``with`` block, or by dropping the
    last reference, as ``break`` in a ``for ... in client.stream(...)`` does. ``close`` may be called from any thread.
    """

    def __init__(self, transport: Transport, reader: Reader[Any, Any, ItemT], deadline: Deadline | None) -> None:
        """Starts the call. Called by the client."""
        self._transport = transport
        self._reader = reader
        self._deadline = deadline
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._call: Any = None
        self._address = ""
        self._attempts = transport.attempts()
        self._span: CallSpan | None = None
        self._look_up_and_open()

    def __iter__(self) -> Self:
        """Returns the stream itself."""
        return self

    def __next__(self) -> ItemT:
        """Returns the next item.

        Raises:
            RequestCancelledError: the stream was closed while this call waited.
            DraftwireError: the call failed.
        """
        while not self._reader.finished and not self._closed.is_set():
            try:
                response = next(self._call, None)
                if response is None:
                    raise InternalError("the verifier ended the stream before the request was finished")
                item = self._read(response)
            except grpc.RpcError as error:
                self._recover(error)
                continue
            except NumericsMismatchError as error:
                self._call.cancel()
                self._recover(error)
                continue
            except BaseException as error:
                self._give_up(error)
                raise
            if self._reader.finished:
                self._drain()
                self._end()
            if item is not None:
                self._attempts.succeeded()
                return item
        raise StopIteration

    def cancel(self) -> None:
        """Cancels the call immediately, if it still runs."""
        with self._lock:
            self._closed.set()
            if self._call is not None:
                self._call.cancel()
        self._end()

    def close(self) -> None:
        """Cancels the call, if it still runs."""
        self.cancel()

    def __enter__(self) -> Self:
        """Returns the stream itself."""
        return self

    def __exit__(
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

    def _look_up_and_open(self, raw: grpc.RpcError | None = None) -> None:
        self._transport.look_up(self._deadline)
        self._open(*self._prepared(), raw)

    def _recover(self, error: grpc.RpcError | NumericsMismatchError) -> None:
        """Starts the next attempt after a failure, or raises the error for the caller."""
        try:
            failure = error if isinstance(error, NumericsMismatchError) else from_rpc_error(error)
            if self._closed.is_set() or self._transport.closed:
                raise RequestCancelledError("the stream was closed", raw=failure.raw) from error
            if failure is not error:
                self._transport.explain(failure, self._reader.method, self._address)
                describe_deadline(failure, self._deadline, self._progress(), self._attempts.lost_by)
            taken = self._call is not None and has_receipt(self._call.initial_metadata())
            try:
                self._closed.wait(self._attempts.failed(failure, self._deadline, taken=taken))
                check_deadline(self._deadline, self._progress(), failure)
                self._look_up_and_open(failure.raw)
            except NumericsMismatchError:
                if not self._reader.begin_anew():
                    raise
                self._attempts.begin_anew()
                self._look_up_and_open(failure.raw)
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

    def _drain(self) -> None:
        """Lets the call end by itself, so that the service does not see a cancellation."""
        try:
            for _ in self._call:
                pass
        except grpc.RpcError:
            pass  # everything has been read
