"""Whether an address is on this machine, where nobody else reads along."""

from __future__ import annotations

import ipaddress
import re

_IP_SCHEMES = ("dns:///", "dns:", "ipv4:", "ipv6:")
_LOCAL_SCHEMES = ("unix:", "unix-abstract:")


def is_loopback_host(host: str) -> bool:
    """Return whether a host is this machine: ``localhost``, or an address of the loopback network.

    A name that only resolves to one is none: what it resolves to can change.
    """
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_loopback(address: str) -> bool:
    """Return whether an address, HOST:PORT or what else gRPC takes, is on this machine."""
    if address.startswith(_LOCAL_SCHEMES):
        return True
    for scheme in _IP_SCHEMES:
        address = address.removeprefix(scheme)
    hosts = [re.sub(r":\d+$", "", one) for one in address.split(",")]  # ipv4: takes several
    return all(is_loopback_host(host) for host in hosts)
