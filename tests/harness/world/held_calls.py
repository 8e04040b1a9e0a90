"""Draft streams whose messages wait until a test delivers them and can be spoiled on the way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal

from google.protobuf import text_format

from draftwire.v1.drafter_service_pb2 import DraftRequest, DraftResponse, SequenceError
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.rpc.message_stream import MessageStream, StreamBroken

Direction = Literal["up", "down"]
"""Direction of a message; "up" is from the verifier to the drafter."""
Converse = Callable[[MessageStream[Any, Any]], Awaitable[None]]

_BLAMES = ("OUT_OF_SYNC", "UNKNOWN_SEQUENCE", "MALFORMED_PROPOSAL", "CREDIT_EXCEEDED", "INVALID_FIELD")
"""Reasons that blame the other side for a mistake; the others report a lack of room."""
_MOST_HELD = 32
"""Number of a drafter's messages that the transport holds before writing blocks."""


class HeldCall(MessageStream[Any, Any]):
    """The drafter's end of a call over the in-process transport.

    Messages in transit are bytes. `None` in `up` is the verifier's end of the stream and stays last.
    """

    def __init__(self, stream: MessageStream[Any, Any]) -> None:
        self._stream = stream
        self.up: deque[bytes | None] = deque()
        self.down: deque[bytes] = deque()
        self.opened: dict[int, int] = {}
        """Epoch of each sequence that is open according to the messages of both sides."""
        self.tainted: set[tuple[int, int]] = set()
        """Openings (sequence, epoch) whose conversation had an accident: their trees may differ."""
        self.story: list[str] = []
        """The messages and what happened to them, one line each."""
        self.unjust: list[str] = []
        """Faults that one side reported of the other although both are honest and no accident happened."""
        self.over = False
        self._inbox: deque[DraftRequest | None] = deque()
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._fault: Exception | None = None
        self._ended = False

    # The drafter's side.

    async def read(self) -> Any:
        while not self._inbox:
            if self._ended:
                if self._fault is not None:
                    raise self._fault
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._inbox.popleft()

    async def write(self, message: DraftResponse) -> None:
        while len(self.down) >= _MOST_HELD:
            self._taken.clear()
            await self._taken.wait()
        if message.WhichOneof("message") == "sequence_error":
            self._blamed(message.sequence_error)
        self._tell("down", message)
        self.down.append(message.SerializeToString())

    async def close(self, error: ServiceError | None = None) -> None:
        if error is not None:
            await self._stream.close(error)
        # Otherwise the stream ends once the drafter's handler has returned and its messages have arrived.

    # In transit.

    async def carry(self, converse: Converse) -> None:
        """Lets a drafter take the call."""
        pump = asyncio.create_task(self._pump())
        try:
            await converse(self)
            while self.down:  # messages written before a clean end still arrive
                self._taken.clear()
                await self._taken.wait()
        finally:
            self.over = True
            pump.cancel()
            await asyncio.wait({pump})

    async def _pump(self) -> None:
        try:
            async for message in self._stream:
                self._sent(message)
                self.up.append(message.SerializeToString())
        except Exception as fault:  # noqa: BLE001 - the drafter reads it
            self.up.clear()
            self._fault, self._ended = fault, True
            self._arrived.set()
        else:
            self.up.append(None)

    def _sent(self, message: DraftRequest) -> None:
        self._tell("up", message)
        kind = message.WhichOneof("message")
        if kind == "open":
            self.opened[message.open.sequence_id] = message.open.epoch
        elif kind == "close":
            for sequence_id in message.close.sequence_ids:
                self.opened.pop(sequence_id, None)
        elif kind == "sequence_error":
            self._blamed(message.sequence_error)

    def _blamed(self, error: SequenceError) -> None:
        """Records that one side blames the other for a mistake."""
        if self.opened.get(error.sequence_id) != error.epoch:
            return
        del self.opened[error.sequence_id]
        reason = StreamBroken(error.status).reason_name
        if reason in _BLAMES and (error.sequence_id, error.epoch) not in self.tainted:
            told = "\n".join(line for line in self.story if f"sequence_id: {error.sequence_id} " in line)
            self.unjust.append(f"{reason}: {error.status.message}\n{told}")

    def _tell(self, what: str, message: Any) -> None:
        self.story.append(f"{what}: {text_format.MessageToString(message, as_one_line=True)}")

    # The test's side.

    @property
    def quiet(self) -> bool:
        """Whether no message is in transit."""
        return not self.up and not self.down and not self._inbox

    def held(self, direction: Direction) -> int:
        """Returns the number of messages in transit, without the end of the stream."""
        return len(self.down) if direction == "down" else len(self.up) - (None in self.up)

    async def deliver(self, direction: Direction) -> None:
        """Delivers the next message."""
        if direction == "down":
            message = self.down.popleft()
            self._taken.set()
            await self._stream.write(DraftResponse.FromString(message))
            return
        sent = self.up.popleft()
        if sent is None:
            self._ended = True
        else:
            self._inbox.append(DraftRequest.FromString(sent))
        self._arrived.set()

    def message(self, direction: Direction, index: int) -> Any:
        """Returns a message in transit."""
        kind: Any = DraftResponse if direction == "down" else DraftRequest
        return kind.FromString((self.down if direction == "down" else self.up)[index])

    def replace(self, direction: Direction, index: int, messages: Sequence[Any], *, harmless: bool = False) -> None:
        """Replaces a message in transit. Unless the change is `harmless`, the affected trees are no longer compared."""
        way: Any = self.down if direction == "down" else self.up
        if not harmless:
            self._taint([self.message(direction, index), *messages])
        for message in reversed(messages):
            way.insert(index + 1, message.SerializeToString())
        del way[index]
        self._taken.set()

    def swap(self, direction: Direction, index: int) -> None:
        """Swaps a message with the one behind it."""
        way: Any = self.down if direction == "down" else self.up
        self._taint([self.message(direction, index), self.message(direction, index + 1)])
        way[index], way[index + 1] = way[index + 1], way[index]

    def _taint(self, messages: Iterable[Any]) -> None:
        for message in messages:
            self._tell("accident", message)
            for sequence_id in _sequences(message):
                if sequence_id in self.opened:
                    self.tainted.add((sequence_id, self.opened[sequence_id]))


def _sequences(message: Any) -> list[int]:
    """Returns the sequences that a message is about."""
    kind = message.WhichOneof("message")
    body = getattr(message, kind)
    if kind in ("open", "opened", "sequence_error"):
        return [body.sequence_id]
    if kind == "close":
        return list(body.sequence_ids)
    if kind == "verdicts":
        return [each.sequence_id for each in body.verdicts]
    if kind == "proposals":
        return [each.sequence_id for each in body.proposals]
    return []
