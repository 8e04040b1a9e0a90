"""Measures the cost of a stream's messages: processor time and bytes."""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

MessageT = TypeVar("MessageT")
ResultT = TypeVar("ResultT")

_LONGEST_STEP = 0.01
"""Maximum processor time charged for one step of a read or write, in seconds; any more is due to something else, such
as garbage collection."""
_BYTE_SECONDS = 100e-9
"""Increase of that maximum for decoding a message, per byte."""


class StreamMeter(Generic[MessageT]):
    """Decodes the messages of a stream, as gRPC's response_deserializer, and times its reads and writes.

    It counts the processor time of the thread that reads and writes, including decoding and encoding. The transport's
    own threads are not counted.
    """

    def __init__(
        self,
        decode: Callable[[bytes], MessageT] | None = None,
        on_message: Callable[[int], None] = lambda size: None,
        *,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        """decode: None if the stream decodes its messages itself. on_message: called with the size in bytes of each
        message decoded here. spent: seconds of processor time of the calling thread."""
        self._decode = decode
        self._on_message = on_message
        self._spent = spent
        self._bytes = 0
        self._seconds = 0.0

    def __call__(self, raw: bytes) -> MessageT:
        self._bytes += len(raw)
        self._on_message(len(raw))
        assert self._decode is not None, "it was made as a decoder"
        return self._decode(raw)

    @types.coroutine
    def timed(self, operation: Coroutine[Any, Any, ResultT]) -> Generator[Any, None, ResultT]:
        """Awaits a read or a write, and adds the processor time of its steps, without the waits between them."""
        error: BaseException | None = None
        while True:
            began, size = self._spent(), self._bytes
            try:
                awaited = operation.send(None) if error is None else operation.throw(error)
            except StopIteration as over:
                result: ResultT = over.value
                return result
            finally:
                longest = _LONGEST_STEP + (self._bytes - size) * _BYTE_SECONDS
                self._seconds += min(self._spent() - began, longest)
            error = None
            try:
                yield awaited
            except BaseException as thrown:  # noqa: BLE001 - handled by the operation, like a cancellation
                error = thrown

    def take_bytes(self) -> int:
        """Returns the bytes received since the previous call."""
        taken, self._bytes = self._bytes, 0
        return taken

    def take_seconds(self) -> float:
        """Returns the seconds of processor time since the previous call."""
        taken, self._seconds = self._seconds, 0.0
        return taken
