"""Follower of a verifier's traffic, in a thread of its own so that training does not block it."""

from __future__ import annotations

import threading
from collections import deque

from draftwire import Client, ServedRequest
from draftwire.errors import DraftwireError


class TrafficFollower:
    """Keeps the newest requests until they are taken."""

    def __init__(self, client: Client, *, most: int = 1024, likeliest: bool = False):
        """Starts following. most: requests kept. likeliest: whether to ask for the target's likeliest tokens."""
        self._changed = threading.Condition()
        self._requests: deque[ServedRequest] = deque(maxlen=most)
        self._error: DraftwireError | None = None
        self.begun = 0
        """Times that following has begun: more than once if the connection was lost and made again."""
        self._stream = client.follow_traffic(likeliest=likeliest)
        self._thread = threading.Thread(target=self._read, name="traffic-follower", daemon=True)
        self._thread.start()

    def wait_until_following(self, seconds: float) -> None:
        """Waits until finished requests are being reported. Raises DraftwireError, and TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.begun or self._error is not None, seconds):
                raise TimeoutError(f"the verifier did not answer within {seconds:g} s")
            self._check()

    def take(self, seconds: float) -> list[ServedRequest]:
        """Returns the requests finished since the last call; waits up to `seconds` for one. Raises DraftwireError."""
        with self._changed:
            self._changed.wait_for(lambda: self._requests or self._error is not None, seconds)
            taken = list(self._requests)
            self._requests.clear()
            if not taken:
                self._check()
            return taken

    def close(self) -> None:
        """Stops following."""
        self._stream.close()
        self._thread.join()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _read(self) -> None:
        try:
            for part in self._stream:
                with self._changed:
                    self.begun += not part.requests  # the first message alone has none
                    self._requests.extend(part.requests)
                    self._changed.notify_all()
        except DraftwireError as error:  # raised again by take
            with self._changed:
                self._error = error
                self._changed.notify_all()
