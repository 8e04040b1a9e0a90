"""DNS lookup of verifiers."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import threading
from collections.abc import Iterable
from typing import Any

LONGEST_LOOKUP_SECONDS = 5.0
"""Time limit of a lookup; a name not resolved by then counts as unresolvable."""
_HOST_PORT = re.compile(r"([A-Za-z0-9._-]+):(\d{1,5})")


def is_name(address: str) -> bool:
    """Returns whether an address is a DNS name with a port, not an IP address or an address with a gRPC scheme."""
    match = _HOST_PORT.fullmatch(address)
    if match is None:
        return False
    try:
        ipaddress.ip_address(match[1])
    except ValueError:
        return True
    return False


def resolve(name: str, seconds: float | None = None) -> tuple[str, ...]:
    """Returns the addresses of a name and port, in the resolver's order; the name itself if it has only one.

    Returns no address for a name that cannot be resolved in time; gRPC then tries as well, and its error has the cause.
    Only addresses of the family with more addresses count: a name with one IPv4 and one IPv6 address is one verifier.
    """
    found: list[tuple[str, ...]] = []
    lookup = threading.Thread(target=lambda: found.append(_look_up(name)), name="draftwire-names", daemon=True)
    lookup.start()
    lookup.join(LONGEST_LOOKUP_SECONDS if seconds is None else min(LONGEST_LOOKUP_SECONDS, seconds))
    return found[0] if found else ()


async def resolve_async(name: str, seconds: float | None = None) -> tuple[str, ...]:
    """Does the same as ``resolve`` without blocking the event loop."""
    longest = LONGEST_LOOKUP_SECONDS if seconds is None else min(LONGEST_LOOKUP_SECONDS, seconds)
    try:
        return await asyncio.wait_for(asyncio.to_thread(_look_up, name), longest)
    except TimeoutError:
        return ()


def _look_up(name: str) -> tuple[str, ...]:
    host, _, port = name.rpartition(":")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return choose(name, found)


def choose(name: str, found: Iterable[tuple[Any, ...]]) -> tuple[str, ...]:
    """Returns the addresses to use from the results of ``getaddrinfo``."""
    by_family: dict[int, dict[str, None]] = {}
    for family, _, _, _, (host, port, *_) in found:
        address = f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"
        by_family.setdefault(family, {})[address] = None
    most = max(by_family.values(), key=len, default={})
    return tuple(most) if len(most) > 1 else (name,)
