"""How long to wait before trying again."""

import asyncio
import random


class Backoff:
    """Exponential back-off with full jitter: the n-th wait is drawn evenly from 0 to min(max, initial * 2**n).

    Full jitter keeps drafters that lost one verifier at the same moment from coming back at the same moment.
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
        """The next wait, in seconds."""
        delay = self._rng.uniform(0, self._ceiling)
        self._ceiling = min(self._max, self._ceiling * 2)
        return delay

    def reset(self) -> None:
        """Starts anew; call it once a try has succeeded."""
        self._ceiling = self._initial

    async def wait(self) -> None:
        """Sleeps for the next delay."""
        await asyncio.sleep(self.next_delay())
