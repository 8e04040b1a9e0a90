"""The interceptor around every call, which turns errors into statuses and logs how the call ended."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.runtime.errors import (
    ServiceError,
    abort_call,
    internal,
    message_too_large,
    shutting_down,
)
from draftwire_core.runtime.process.logs import get_logger, log_context
from draftwire_core.runtime.rpc.message_stream import ClientGone
from draftwire_core.runtime.security.accepted_tokens import AcceptedTokens
from draftwire_core.runtime.security.caller import Caller, set_caller

if TYPE_CHECKING:
    _Handler = grpc.RpcMethodHandler[Any, Any]
    _Context = grpc.aio.ServicerContext[Any, Any]

log = get_logger(__name__)

_WATCH_SECONDS = 5.0
"""Interval between two checks of running calls against the token file."""
_INFRASTRUCTURE = ("/grpc.health.", "/grpc.reflection.")
_ROUTINE: ContextVar[bool] = ContextVar("routine", default=False)
"""Whether the current call was marked as routine."""
# grpc raises InternalError in a pending write when the client goes away.
_CLIENT_GONE = (ClientGone, grpc.aio.InternalError)


def mark_routine() -> None:
    """Marks the current call as routine and without side effects: if it succeeds, its end is logged at debug level."""
    _ROUTINE.set(True)


def service_error(error: Exception) -> ServiceError:
    """Returns the error to send to the client for an exception that a handler raised.

    A ServiceError is sent as it is, also one inside the ExceptionGroup of a TaskGroup. Anything else is a fault of the
    service: it is logged here with its traceback, and the client receives an incident id.
    """
    told = told_error(error)
    if told is not None:
        return told
    incident = secrets.token_hex(6)
    log.error("call failed unexpectedly", incident=incident, exc_info=error)
    return internal(incident)


def told_error(error: Exception) -> ServiceError | None:
    """Returns the ServiceError in an exception that a handler raised, alone or in a group; None for a fault of the
    service and for a client that is gone."""
    leaves = list(_leaves(error))
    told = [leaf for leaf in leaves if isinstance(leaf, ServiceError)]
    return told[0] if told and all(isinstance(leaf, (ServiceError, *_CLIENT_GONE)) for leaf in leaves) else None


def is_client_gone(error: Exception) -> bool:
    """Returns whether an exception that a handler raised means only that its client is gone."""
    return all(isinstance(leaf, _CLIENT_GONE) for leaf in _leaves(error))


def _gone_code(context: "_Context") -> grpc.StatusCode:
    expired = context.time_remaining() == 0
    return grpc.StatusCode.DEADLINE_EXCEEDED if expired else grpc.StatusCode.CANCELLED


async def _abort(context: "_Context", error: ServiceError) -> NoReturn:
    """Ends a call with an error, as `abort_call`. Raises CancelledError, as grpc expects of a handler without a client,
    if the call ends before the error is sent, as at its deadline."""
    try:
        await abort_call(context, error)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None


def _leaves(error: Exception) -> Iterator[Exception]:
    """Yields the exceptions inside nested groups, or the exception itself."""
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _without_history(aborted: grpc.aio.AbortError) -> grpc.aio.AbortError:
    """Returns the error of an aborted call without its traceback and the error that led to it.

    grpc keeps it in a reference cycle with the call. The variables of all frames in these tracebacks, of which one is
    the request, would stay in memory until the garbage collector finds the cycle.
    """
    aborted.__context__ = None
    return aborted.with_traceback(None)


class _Admitted:
    """A running call that was admitted by a token."""

    def __init__(self, check: Callable[[], object], version: object) -> None:
        """Must be created in the call's task. check: raises ServiceError when the token no longer permits the call.
        version: of the token file when the call was admitted."""
        self._check = check
        self._version = version
        self._task = asyncio.current_task()
        self.refusal: ServiceError | None = None
        """The error that the call was ended with."""

    def check(self, version: object) -> None:
        """Ends the call if it is no longer permitted. version: current version of the token file."""
        if version is self._version:
            return
        self._version = version
        try:
            self._check()
        except ServiceError as refusal:
            if self.refusal is None and self._task is not None:
                self.refusal = refusal
                self._task.cancel()


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handlers of all four kinds; they must be coroutine functions or asynchronous generators.

    Messages larger than `max_message_bytes` in either direction, and undecodable messages, also end with a rich error.
    After `refuse_new_calls`, new calls other than health and reflection end with SHUTTING_DOWN. With `tokens`, each
    call needs a token that permits it; a call without one ends before its messages are decoded. While `watch` runs,
    revoking a token ends its running calls.
    """

    def __init__(
        self,
        max_message_bytes: int,
        tokens: AcceptedTokens | None = None,
        on_message: Callable[[int], None] = lambda size: None,
    ) -> None:
        """on_message: called with the size in bytes of each message, for a streamed request as it arrives, for others
        when their call is over."""
        self._max_message_bytes = max_message_bytes
        self._tokens = tokens
        self._on_message = on_message
        self._refusing = False
        self._admitted: set[_Admitted] = set()

    async def watch(self) -> None:
        """Ends running calls whose tokens are no longer accepted; runs until cancelled."""
        if self._tokens is None:
            return
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            version = self._tokens.version
            for call in list(self._admitted):
                call.check(version)

    def refuse_new_calls(self) -> None:
        """Refuses new calls from now on; running ones continue."""
        self._refusing = True

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["_Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "_Handler | None":
        handler = await continuation(handler_call_details)
        if handler is None:  # no such method; grpc answers UNIMPLEMENTED
            return handler
        return self._wrap(handler, handler_call_details)

    def _identify(self, call: grpc.HandlerCallDetails) -> Caller | ServiceError | None:
        """Returns the caller, or the error that refuses the call; None if no token is required."""
        if self._tokens is None:
            return None
        try:
            return self._tokens.check(call.method, call.invocation_metadata)
        except ServiceError as refusal:
            return refusal

    def _wrap(self, handler: "_Handler", call: grpc.HandlerCallDetails) -> "_Handler":
        version = self._tokens.version if self._tokens is not None else None  # read before the caller is identified
        caller = self._identify(call)
        stream = "stream" if handler.response_streaming else "unary"
        kind = f"{'stream' if handler.request_streaming else 'unary'}_{stream}"
        behavior = getattr(handler, kind)

        sizes: list[int] = []  # bytes of this call's messages

        async def unary_response(request: Any, context: "_Context") -> Any:
            try:
                async with self._around(call, context, caller, version, sizes):
                    if isinstance(request, ServiceError):
                        raise request
                    answering = behavior(request, context)
                    del request  # see _without_history
                    response = encode(await answering)
                    sizes.append(len(response))
                    return response
            except grpc.aio.AbortError as aborted:
                raise _without_history(aborted)  # noqa: B904

        async def stream_response(request: Any, context: "_Context") -> None:
            try:
                async with self._around(call, context, caller, version, sizes):
                    if isinstance(request, ServiceError):
                        raise request
                    responses = behavior(request, context)
                    del request  # see _without_history
                    if not hasattr(responses, "__aiter__"):
                        await responses
                        return
                    # Otherwise grpc drops the generator of a cancelled call and its `finally` runs at some later time;
                    # here it has run before the call is over.
                    async with aclosing(responses):
                        async for response in responses:
                            await context.write(response)
            except grpc.aio.AbortError as aborted:
                raise _without_history(aborted)  # noqa: B904

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        refused = isinstance(caller, ServiceError)
        deserialize = None if refused else handler.request_deserializer
        streaming = handler.request_streaming
        decode = self._decoder(deserialize, self._on_message if streaming else sizes.append, raising=streaming)
        encode = self._encoder(handler.response_serializer)
        wrapped: _Handler = (
            make(stream_response, decode, encode) if handler.response_streaming else make(unary_response, decode, None)
        )
        return wrapped

    def _encoder(self, serialize: Callable[[Any], bytes] | None) -> Callable[[Any], bytes]:
        """Returns an encoder of responses. A response that is too large is the service's fault, but grpc would report
        it as a lost client."""

        def encode(response: Any) -> bytes:
            raw: bytes = response if serialize is None else serialize(response)
            if len(raw) > self._max_message_bytes:
                raise message_too_large(len(raw), self._max_message_bytes)
            return raw

        return encode

    def _decoder(
        self, deserialize: Callable[[bytes], Any] | None, on_message: Callable[[int], None], *, raising: bool
    ) -> Callable[[bytes], Any]:
        """Returns a decoder of requests that reports faults as ServiceError.

        A streamed request is decoded inside the handler's read, so the error is raised there. A single request is
        decoded before the handler runs; an exception there would reach the client as UNKNOWN, so the error is returned
        in place of the request.
        """

        def decode(raw: bytes) -> Any:
            on_message(len(raw))
            try:
                if len(raw) > self._max_message_bytes:
                    raise message_too_large(len(raw), self._max_message_bytes)
                return raw if deserialize is None else deserialize(raw)
            except DecodeError as error:
                failure = ServiceError(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    ErrorReason.ERROR_REASON_INVALID_FIELD,
                    f"the request is not a valid message: {error}",
                )
                if raising:
                    raise failure from error
                return failure
            except ServiceError as failure:
                if raising:
                    raise
                return failure

        return decode

    @asynccontextmanager
    async def _around(
        self,
        call: grpc.HandlerCallDetails,
        context: "_Context",
        caller: Caller | ServiceError | None,
        version: object,
        sizes: Sequence[int],
    ) -> AsyncIterator[None]:
        method = call.method
        admitted: _Admitted | None = None
        started = time.perf_counter()
        infrastructure = method.startswith(_INFRASTRUCTURE)
        code = grpc.StatusCode.OK
        known = {"caller": caller.peer} if isinstance(caller, Caller) else {}
        _ROUTINE.set(False)
        with log_context(method=method, peer=context.peer(), **known):
            try:
                if isinstance(caller, ServiceError):
                    raise caller
                set_caller(caller)
                if self._refusing and not infrastructure:
                    raise shutting_down()
                if self._tokens is not None and caller is not None:
                    admitted = _Admitted(partial(self._tokens.check, method, call.invocation_metadata), version)
                    self._admitted.add(admitted)
                yield
                code = context.code() or code
            except grpc.aio.AbortError:
                code = context.code()
                raise
            except asyncio.CancelledError:
                if admitted is not None and admitted.refusal is not None:
                    code = admitted.refusal.code
                    await _abort(context, admitted.refusal)
                code = _gone_code(context)
                raise
            except Exception as error:
                if is_client_gone(error):
                    code = _gone_code(context)
                    raise asyncio.CancelledError from error  # as grpc expects of a handler without a client
                failure = service_error(error)
                code = failure.code
                try:
                    await _abort(context, failure)
                except asyncio.CancelledError:
                    code = _gone_code(context)
                    raise
                finally:
                    del failure  # its traceback refers to this frame
            finally:
                if admitted is not None:
                    self._admitted.discard(admitted)
                for size in sizes:
                    self._on_message(size)
                routine = _ROUTINE.get() and code is grpc.StatusCode.OK
                report = log.debug if infrastructure or routine else log.info
                report("call finished", code=code.name, seconds=round(time.perf_counter() - started, 6))
