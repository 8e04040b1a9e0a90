"""Measures the cost of decoding a stream's messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

MessageT = TypeVar("MessageT")


class Decoded(NamedTuple):
    """Decoded bytes and the processor time they took."""

    size: int
    """Bytes decoded."""
    seconds: float
    """Seconds of processor time."""


NOTHING_DECODED = Decoded(0, 0.0)


class DecodingMeter(Generic[MessageT]):
    """Decodes and measures messages; used as gRPC's response_deserializer."""

    def __init__(self, decode: Callable[[bytes], MessageT], on_message: Callable[[int], None]) -> None:
        """on_message: called with the size in bytes of each message."""
        self._decode = decode
        self._on_message = on_message
        self._taken = NOTHING_DECODED

    def __call__(self, raw: bytes) -> MessageT:
        began = time.thread_time()
        try:
            return self._decode(raw)
        finally:
            seconds = time.thread_time() - began
            self._taken = Decoded(self._taken.size + len(raw), self._taken.seconds + seconds)
            self._on_message(len(raw))

    def take(self) -> Decoded:
        """Returns the bytes decoded since the previous call, and their processor time."""
        taken, self._taken = self._taken, NOTHING_DECODED
        return taken
