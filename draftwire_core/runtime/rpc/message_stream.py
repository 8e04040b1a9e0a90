"""A stream of messages between two peers, independent of transport."""

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice
from typing import Any, Protocol, Self, TypeVar

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from draftwire_core.runtime.errors import DOMAIN, ServiceError

SendT_contra = TypeVar("SendT_contra", contravariant=True)
RecvT_co = TypeVar("RecvT_co", covariant=True)

_MOST_DETAILS = 32
"""Most details of a status that are looked at. A message may hold millions, each of which takes a microsecond."""
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


class StreamBroken(Exception):
    """The stream has broken and is unusable; `status` says why."""

    def __init__(self, status: status_pb2.Status) -> None:
        self.status = status
        super().__init__(f"{self.code.name}: {status.message}")

    @classmethod
    def of(cls, code: grpc.StatusCode, message: str) -> Self:
        """Returns a StreamBroken without details."""
        return cls(status_pb2.Status(code=code.value[0], message=message))

    @property
    def code(self) -> grpc.StatusCode:
        """The canonical status code."""
        return _CODES.get(self.status.code, grpc.StatusCode.UNKNOWN)

    @property
    def reason_name(self) -> str | None:
        """The published reason, without its prefix; None if the other side gave none."""
        for info in self._details(error_details_pb2.ErrorInfo):
            if info.domain == DOMAIN:
                reason: str = info.reason
                return reason
        return None

    @property
    def retry_seconds(self) -> float | None:
        """Seconds after which the other side asks for a retry; None if it did not say."""
        for info in self._details(error_details_pb2.RetryInfo):
            delay: float = info.retry_delay.seconds + info.retry_delay.nanos / 1e9
            return delay
        return None

    def _details(self, kind: Callable[[], Any]) -> Iterator[Any]:
        """Yields the details of a kind. Unreadable ones are skipped, because the other side may send anything."""
        for detail in islice(self.status.details, _MOST_DETAILS):
            message = kind()
            try:
                if detail.Unpack(message):
                    yield message
            except DecodeError:
                continue


class ClientGone(StreamBroken):
    """On the server's side, the client cancelled, died or ran out of time; no error can reach it."""


class OneAtATime:
    """Raises RuntimeError when two tasks read, or two tasks write, at once; catches that mistake on both transports."""

    def __init__(self) -> None:
        self._busy = False

    def __enter__(self) -> None:
        if self._busy:
            raise RuntimeError("another task is reading or writing this stream already")
        self._busy = True

    def __exit__(self, *_: object) -> None:
        self._busy = False


class MessageStream(Protocol[SendT_contra, RecvT_co]):
    """One side of a bidirectional stream. One task may read and one may write at a time.

    On the client's side a lost, failed or cancelled stream raises StreamBroken. On the server's side a client that is
    gone cancels the handler, as in grpc; just before that, another task of the handler may see its read return None or
    raise ClientGone. Handlers must therefore clean up in `finally`.
    """

    async def read(self) -> RecvT_co | None:
        """Returns the next message, or None at the end. Raises StreamBroken.

        May be cancelled, for example by asyncio.timeout: the stream continues and no message is lost.
        """
        ...

    async def write(self, message: SendT_contra) -> None:
        """Sends a message; returns when the transport has taken it. Raises StreamBroken, and RuntimeError after close.

        May be cancelled: the stream continues, and the message may or may not be sent.
        """
        ...

    async def write_or_end(self, message: SendT_contra) -> None:
        """As `write`, at less cost, but cancelling it may end the whole stream."""
        await self.write(message)

    async def close(self, error: ServiceError | None = None) -> None:
        """Ends this side's messages. Closing again has no effect, except that the first error still counts.

        Without an error the other side reads to a clean end: immediately when the client closes, or after the handler
        returns when the server closes. With an error, a server ends the call with that status and a client cancels it.
        Raises StreamBroken when a client's stream breaks before the other side can know.
        """
        ...

    def take_bytes(self) -> int:
        """Returns the bytes of messages received since the previous call; 0 if they are not measured."""
        return 0

    def take_seconds(self) -> float:
        """Returns the processor time in seconds of reads and writes since the previous call; 0 if it is not
        measured."""
        return 0.0

    def __aiter__(self) -> AsyncIterator[RecvT_co]:
        """Iterates over the messages to the clean end. Raises StreamBroken. Cancelling it may end the whole stream."""
        return _messages(self)


async def _messages(stream: MessageStream[SendT_contra, RecvT_co]) -> AsyncIterator[RecvT_co]:
    while (message := await stream.read()) is not None:
        yield message
