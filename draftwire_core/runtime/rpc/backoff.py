"""Delays between retries."""

import asyncio
import random


class Backoff:
    """Exponential back-off with full jitter: the n-th delay is uniform between 0 and min(max, initial * 2**n).

    Full jitter keeps drafters that lost the same verifier from reconnecting at the same moment.
    """

    def __init__(self, initial_seconds: float, max_seconds: float, rng: random.Random | None = None) -> None:
        """Raises ValueError unless 0 < initial_seconds <= max_seconds."""
        if not 0 < initial_seconds <= max_seconds:
            raise ValueError(f"need 0 < initial_seconds <= max_seconds, got {initial_seconds} and {max_seconds}")
        self._initial = initial_seconds
        self._max = max_seconds
        self._ceiling = initial_seconds
        self._rng = rng if rng is not None else random.Random()

    def next_delay(self) -> float:
        """Returns the next delay in seconds."""
        delay = self._rng.uniform(0, self._ceiling)
        self._ceiling = min(self._max, self._ceiling * 2)
        return delay

    def reset(self) -> None:
        """Starts over; called after a successful try."""
        self._ceiling = self._initial

    async def wait(self) -> None:
        """Sleeps for the next delay."""
        await asyncio.sleep(self.next_delay())
