"""The addresses to serve on, checked before anything is loaded."""

from __future__ import annotations

import errno
import socket

from draftwire.cli.failure import Failure
from draftwire_tools.service import free_address

USUAL_VERIFIER = "127.0.0.1:50051"
"""The address at which the other commands look for a verifier."""


def listen_address(flag: str, address: str) -> str:
    """Returns an address to listen on, with a free port in place of port 0, since the processes have to
    know each other's ports.

    Args:
        flag: the flag that gave it.
        address: HOST:PORT.

    Raises:
        ValueError: it is not HOST:PORT.
        Failure: nothing can listen there.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{flag}: expected HOST:PORT, got {address!r}")
    if port == "0":
        return free_address(host)
    if problem := _problem(host, int(port)):
        raise Failure(f"{flag}: cannot listen on {address}: {problem}")
    return address


def verifier_address(given: str | None, endpoint: str) -> str:
    """Returns the address of the verifier: the given one; otherwise the usual one if it is free, or else a free one.
    endpoint: the address that the gateway will listen on.

    Raises:
        ValueError: the given one is not HOST:PORT.
        Failure: nothing can listen there.
    """
    if given is not None:
        return listen_address("--verifier-listen", given)
    host, _, port = USUAL_VERIFIER.rpartition(":")
    taken = endpoint.rpartition(":")[2] == port or _problem(host, int(port))
    return free_address(host) if taken else USUAL_VERIFIER


def reachable(address: str) -> str:
    """Returns the address at which this machine reaches what listens on an address."""
    host, _, port = address.rpartition(":")
    if host == "[::]":  # servers of asyncio listen there for IPv6 alone
        return f"[::1]:{port}"
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "") else address


def _problem(host: str, port: int) -> str:
    """Returns why nothing can listen on an address; empty if something can."""
    try:
        found = socket.getaddrinfo(host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, place = found[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(place)
            tried.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "another process listens there; choose another address, or port 0 for a free one"
        return error.strerror or str(error)
    except UnicodeError:  # of the encoding as a domain name
        return "this is not the name of a host"
    return ""
