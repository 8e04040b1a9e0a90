"""The host of a request: a name or an address, perhaps with a port; and origins, which are made of one."""

from __future__ import annotations

import ipaddress
import re

_FORM = re.compile(
    r"(?:\[(?P<v6>[0-9a-f:.]{2,45})\]|(?P<name>[a-z0-9_](?:[a-z0-9_.-]{0,253}[a-z0-9_])?\.?))(?::(?P<port>\d{1,5}))?"
)
_ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>.+)")
_LAST_PORT = 65535
_OWN_PORTS = {"http": "80", "https": "443"}
"""Browsers leave them out."""


def host_of(text: str) -> str | None:
    """Return the host of HOST or HOST:PORT, [HOST] for IPv6, in its one form; None for anything else."""
    found = _FORM.fullmatch(text.lower())
    if found is None or int(found["port"] or 0) > _LAST_PORT:
        return None
    if found["v6"] is None:
        return str(found["name"]).removesuffix(".")
    try:
        return str(ipaddress.IPv6Address(found["v6"]))
    except ValueError:
        return None


def is_origin(text: str) -> bool:
    """Return whether a text is an origin as browsers spell it: SCHEME://HOST, with :PORT if it is not the scheme's."""
    found = _ORIGIN.fullmatch(text)
    if found is None or text != text.lower() or host_of(found["host"]) is None:
        return False
    port = found["host"].rpartition(":")[2]
    return port != _OWN_PORTS.get(found["scheme"])
