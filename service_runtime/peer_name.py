"""For whom a call counts: what limits and shares go by."""

from urllib.parse import unquote

from service_runtime.address import Address
from service_runtime.caller import current_caller


def peer_name(peer: str) -> str:
    """Whom the call that is handled here counts for: its caller, or the host in gRPC's name of the peer."""
    caller = current_caller()
    return peer_host(peer) if caller is None else caller.name


def peer_host(peer: str) -> str:
    """The host in gRPC's name of a peer: `ipv4:10.0.0.7:51234` is 10.0.0.7. Of another kind, the name itself."""
    kind, _, address = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return Address.parse(unquote(address)).host
