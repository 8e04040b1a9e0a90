"""The single task that writes to a stream."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from draftwire_core.runtime.rpc.message_stream import MessageStream

SendT = TypeVar("SendT")


class OutboxFull(Exception):
    """The outbox has reached its bound because the other side accepts messages too slowly."""


class StreamWriter(Generic[SendT]):
    """A bounded outbox of a stream. Any task of the loop adds messages; `run`, in one task, writes them in order.

    Other threads must go through loop.call_soon_threadsafe.
    """

    def __init__(self, stream: MessageStream[SendT, object], max_queued: int) -> None:
        """max_queued: most messages that wait. Raises ValueError unless it is at least 1."""
        if max_queued < 1:
            raise ValueError(f"max_queued must be at least 1, got {max_queued}")
        self._stream = stream
        self._max_queued = max_queued
        self._queued: deque[tuple[SendT, Callable[[], None] | None]] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def queued(self) -> int:
        """Number of messages that wait."""
        return len(self._queued)

    @property
    def closed(self) -> bool:
        """Whether the outbox accepts no more messages, after `close` or because the stream broke."""
        return self._closed

    def offer(self, message: SendT, written: Callable[[], None] | None = None) -> bool:
        """Queues a message that may be lost; returns False, without queueing it, when full or closed. written: called
        when it has been written."""
        if self._closed or len(self._queued) >= self._max_queued:
            return False
        self._queued.append((message, written))
        self._changed.set()
        return True

    def send(self, message: SendT, written: Callable[[], None] | None = None) -> None:
        """Queues a message that must arrive; never waits. written: called when it has been written. Raises OutboxFull,
        and RuntimeError after close."""
        if self._closed:
            raise RuntimeError("the outbox is closed")
        if not self.offer(message, written):
            raise OutboxFull(f"{self._max_queued} messages are queued already")

    def close(self) -> None:
        """Accepts no more messages; `run` writes those that wait, closes the stream and returns."""
        self._closed = True
        self._changed.set()

    async def run(self) -> None:
        """Writes messages until closed. Raises StreamBroken; waiting messages are then dropped."""
        try:
            while True:
                while self._queued:
                    message, written = self._queued.popleft()
                    await self._stream.write_or_end(message)
                    if written is not None:
                        written()
                if self._closed:
                    break
                self._changed.clear()
                await self._changed.wait()
            await self._stream.close()
        finally:
            self._closed = True
            self._queued.clear()
