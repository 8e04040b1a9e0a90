"""Addresses of services, as HOST:PORT or in another form of gRPC's, and the test for addresses on this machine."""

from __future__ import annotations

import ipaddress
import re

from draftwire._types.quoting import quoted

_SCHEME = re.compile(r"(?:dns|ipv4|ipv6|unix|unix-abstract|vsock|xds):")
"""gRPC's own address schemes are not checked. ``dns:`` without a port also means port 443, but callers who write it
know gRPC."""
_HOST_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]@]+):(?P<port>\d{1,5})")
_PORTS = range(1, 1 << 16)

_IP_SCHEMES = ("dns:///", "dns:", "ipv4:", "ipv6:")
_LOCAL_SCHEMES = ("unix:", "unix-abstract:")


def check_address(address: str) -> None:
    """Checks that an address has a port; without one gRPC would use port 443.

    Raises:
        ValueError: the address is not HOST:PORT; the message quotes it.
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
    raise ValueError(f"{quoted(address)} is not the address of a service: expected HOST:PORT, {example}")


def is_loopback_host(host: str) -> bool:
    """Returns whether a host is this machine: ``localhost``, or an address of the loopback network.

    Other names do not count, even if they resolve to loopback: what a name resolves to can change.
    """
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_loopback(address: str) -> bool:
    """Returns whether an address, HOST:PORT or another form of gRPC's, is on this machine."""
    if address.startswith(_LOCAL_SCHEMES):
        return True
    for scheme in _IP_SCHEMES:
        address = address.removeprefix(scheme)
    hosts = [re.sub(r":\d+$", "", one) for one in address.split(",")]  # ipv4: takes several
    return all(is_loopback_host(host) for host in hosts)
