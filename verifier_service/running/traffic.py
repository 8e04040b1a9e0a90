"""The followers of the served traffic, and the requests that wait for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.verifier_service_pb2 import FollowTrafficResponse, ServedRequest
from draftwire_core.runtime.errors import at_capacity, failed_precondition, shutting_down

_MOST_FOLLOWERS = 8
_MOST_WAITING = 256
"""Most requests waiting for one follower; later ones are dropped and counted."""
_MOST_LIKELIEST = 1 << 20
"""Most likeliest tokens waiting for one follower, 7 MiB of messages; later requests come without theirs."""
_MOST_TOGETHER = 16
"""Most requests in one message."""
_MOST_BYTES = 1 << 20
"""Bytes of requests after which a message takes no further one."""
_RETRY_SECONDS = 5.0


class _Follower:
    def __init__(self, *, likeliest: bool) -> None:
        self.likeliest = likeliest
        self.waiting: deque[ServedRequest] = deque()
        self.dropped = 0
        self.changed = asyncio.Event()

    def takes(self, request: ServedRequest) -> bool:
        """Whether it is to have the request's likeliest tokens."""
        waiting = sum(len(each.top_token_ids) for each in self.waiting)
        return self.likeliest and waiting + len(request.top_token_ids) <= _MOST_LIKELIEST


class Traffic:
    """Streams finished requests to followers. Used in the event loop only."""

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._followers: list[_Follower] = []
        self._ending = False

    @property
    def followed(self) -> bool:
        """Whether there is any follower."""
        return bool(self._followers)

    @property
    def likeliest_wanted(self) -> bool:
        """Whether a follower asks for the target's likeliest tokens."""
        return any(follower.likeliest for follower in self._followers)

    def tell(self, request: ServedRequest) -> None:
        """Queues a finished request for every follower, with the likeliest tokens for those that ask for them."""
        without = _without_likeliest(request)
        for follower in self._followers:
            if len(follower.waiting) < _MOST_WAITING:
                follower.waiting.append(request if follower.takes(request) else without)
            else:
                follower.dropped += 1
            follower.changed.set()

    async def follow(self, *, likeliest: bool = False) -> AsyncGenerator[FollowTrafficResponse, None]:
        """Yields requests as they finish from now on; the first message is empty and immediate. Raises ServiceError.

        likeliest: whether with the target's likeliest tokens, if a request begins from now on.
        """
        if not self._shared:
            raise failed_precondition(
                ErrorReason.ERROR_REASON_NOT_ENABLED,
                "sharing traffic is not enabled: start the verifier with --share-traffic",
            )
        if len(self._followers) >= _MOST_FOLLOWERS:
            raise at_capacity(
                f"{len(self._followers)} callers follow the traffic; at most {_MOST_FOLLOWERS} may", _RETRY_SECONDS
            )
        follower = _Follower(likeliest=likeliest)
        self._followers.append(follower)
        try:
            yield FollowTrafficResponse()
            while not self._ending:
                if not follower.waiting:
                    follower.changed.clear()
                    await follower.changed.wait()
                    continue
                requests: list[ServedRequest] = []
                size = 0
                while follower.waiting and len(requests) < _MOST_TOGETHER and size < _MOST_BYTES:
                    requests.append(follower.waiting.popleft())
                    size += requests[-1].ByteSize()
                yield FollowTrafficResponse(requests=requests, dropped=follower.dropped)
            raise shutting_down()
        finally:
            self._followers.remove(follower)

    def end(self) -> None:
        """Ends every stream, present and future: an endless stream would delay a graceful stop."""
        self._ending = True
        for follower in self._followers:
            follower.changed.set()


def _without_likeliest(request: ServedRequest) -> ServedRequest:
    if not request.top:
        return request
    without = ServedRequest()
    without.CopyFrom(request)
    for field in ("top", "top_token_ids", "top_log_probs"):
        without.ClearField(field)
    return without
