"""What one peer may have running and waiting at once, so that no client takes all the room."""

from __future__ import annotations

from urllib.parse import unquote

from service_runtime.address import Address
from service_runtime.errors import at_capacity

_RETRY_SECONDS = 1.0
"""When a peer may try again: its own requests have to end first."""


class PeerLimits:
    """Counts requests and tokens by peer. A peer is a host: its processes and connections share the limits."""

    def __init__(self, max_requests: int = 0, max_tokens: int = 0):
        """Most requests of a peer, and most tokens of these, at their greatest lengths; 0 sets no limit."""
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self._held: dict[int, tuple[str, int]] = {}

    def add(self, sequence_id: int, peer: str, tokens: int) -> None:
        """Count a request of up to `tokens` tokens. Raises ServiceError, AT_CAPACITY, if that is beyond a limit."""
        held = [count for other, count in self._held.values() if other == peer]
        if self.max_requests and len(held) >= self.max_requests:
            raise at_capacity(
                f"{len(held)} requests of {peer} run or wait already, at most {self.max_requests} may", _RETRY_SECONDS
            )
        if self.max_tokens and sum(held) + tokens > self.max_tokens:
            raise at_capacity(
                f"requests of {peer} run or wait already with up to {sum(held)} tokens; {tokens} more are beyond "
                f"the limit of {self.max_tokens}",
                _RETRY_SECONDS,
            )
        self._held[sequence_id] = (peer, tokens)

    def remove(self, sequence_id: int) -> None:
        """The request has ended; does nothing if it was not counted."""
        self._held.pop(sequence_id, None)


def peer_host(peer: str) -> str:
    """The host in gRPC's name of a peer: `ipv4:10.0.0.7:51234` is 10.0.0.7. Of another kind, the name itself."""
    kind, _, address = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return Address.parse(unquote(address)).host
