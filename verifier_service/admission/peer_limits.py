"""Limits on what one peer may have running and waiting, so that no client takes all the room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import grpc

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.runtime.errors import ServiceError, at_capacity
from draftwire_core.runtime.security.caller import current_caller

_RETRY_SECONDS = 1.0
"""Retry delay for a peer, whose own requests have to end first."""


class _Limits(NamedTuple):
    requests: int
    tokens: int


class PeerLimits:
    """Counts requests and tokens by peer. A peer is a caller, by its token's name, or, without tokens, a host, whose
    processes and connections share the limits. A caller's own limits replace the service's.

    If the caller is a gateway that names its clients, each of these is a peer, for which the service's limits hold;
    the gateway's own limits hold for all of them together.
    """

    def __init__(self, max_requests: int = 0, max_tokens: int = 0):
        """max_requests: most requests of a peer. max_tokens: most tokens of a peer's requests, at their maximum
        lengths. 0 sets no limit."""
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self._held: dict[object, tuple[str, int]] = {}

    @contextmanager
    def reading(self, peer: str) -> Iterator[None]:
        """Counts a request whose tokens are not known yet, until the `with` is left. Raises ServiceError (AT_CAPACITY)
        beyond the limit."""
        self._check_number(peer)
        key = object()
        self._held[key] = (peer, 0)
        try:
            yield
        finally:
            del self._held[key]

    def add(self, sequence_id: int, peer: str, tokens: int) -> None:
        """Counts a request of up to `tokens` tokens. Raises ServiceError beyond a limit: AT_CAPACITY, or
        CONTEXT_EXCEEDED if the request alone exceeds it."""
        self._check_number(peer)
        for name, limits in self._limits(peer):
            held = self._held_by(name)
            if limits.tokens and tokens > limits.tokens:  # waiting would not help
                raise ServiceError(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    ErrorReason.ERROR_REASON_CONTEXT_EXCEEDED,
                    f"prompt and max_tokens are {tokens} tokens together; {name} may have at most {limits.tokens} "
                    "(--max-tokens-per-peer, or max_tokens in the file of --accepted-tokens)",
                )
            if limits.tokens and sum(held) + tokens > limits.tokens:
                raise at_capacity(
                    f"running and waiting requests of {name} have up to {sum(held)} tokens; {tokens} more would exceed "
                    f"the limit of {limits.tokens}",
                    _RETRY_SECONDS,
                )
        self._held[sequence_id] = (peer, tokens)

    def remove(self, sequence_id: int) -> None:
        """Removes a request that has ended; ignores one that was not counted."""
        self._held.pop(sequence_id, None)

    def _check_number(self, peer: str) -> None:
        for name, limits in self._limits(peer):
            if limits.requests and (number := len(self._held_by(name))) >= limits.requests:
                raise at_capacity(
                    f"{number} requests of {name} are running or waiting; at most {limits.requests} may "
                    "(--max-requests-per-peer, or max_requests in the file of --accepted-tokens)",
                    _RETRY_SECONDS,
                )

    def _limits(self, peer: str) -> list[tuple[str, _Limits]]:
        """Returns the names that a request of the current call counts under, with the limits of each."""
        caller, service = current_caller(), _Limits(self.max_requests, self.max_tokens)
        if caller is None:
            return [(peer, service)]
        if caller.client is not None:
            return [(peer, service), (caller.name, _Limits(caller.max_requests or 0, caller.max_tokens or 0))]
        requests = service.requests if caller.max_requests is None else caller.max_requests
        tokens = service.tokens if caller.max_tokens is None else caller.max_tokens
        return [(peer, _Limits(requests, tokens))]

    def _held_by(self, name: str) -> list[int]:
        """Returns the tokens of each request of a peer, those for clients of a gateway included."""
        below = f"{name}/"
        return [tokens for peer, tokens in self._held.values() if peer == name or peer.startswith(below)]
