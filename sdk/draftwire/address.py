"""Addresses of services, as callers write them: HOST:PORT, an IPv6 host in brackets, or what else gRPC takes."""

from __future__ import annotations

import re

from draftwire.shortened import quoted

_SCHEME = re.compile(r"(?:dns|ipv4|ipv6|unix|unix-abstract|vsock|xds):")
"""Addresses of gRPC's own kinds are taken as they are. Its ``dns:`` without a port means 443, too, but whoever writes
that knows gRPC."""
_HOST_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]@]+):(?P<port>\d{1,5})")
_PORTS = range(1, 1 << 16)


def check_address(address: str) -> None:
    """Check that an address names a port: without one gRPC would go to port 443.

    Raises:
        ValueError: it is not HOST:PORT; the message names it.
    """
    if _SCHEME.match(address):
        return
    found = _HOST_PORT.fullmatch(address)
    if found and int(found["port"]) in _PORTS:
        return
    if address.count(":") > 1 and "[" not in address:
        example = "with an IPv6 host in brackets, for example [::1]:50051"
    elif found:
        example = f"with a port from 1 to {_PORTS[-1]}"
    else:
        example = f"for example {address}:50051" if re.fullmatch(r"[\w.-]{1,64}", address) else "and nothing else"
    raise ValueError(f"{quoted(address)} is no address of a service: expected HOST:PORT, {example}")
