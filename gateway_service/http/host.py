"""Hosts of requests, names or addresses with an optional port; and origins, which contain a host."""

from __future__ import annotations

import ipaddress
import re

_FORM = re.compile(
    r"(?:\[(?P<v6>[0-9a-f:.]{2,45})\]|(?P<name>[a-z0-9_](?:[a-z0-9_.-]{0,253}[a-z0-9_])?\.?))(?::(?P<port>\d{1,5}))?"
)
_ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>.+)")
_LAST_PORT = 65535
_OWN_PORTS = {"http": "80", "https": "443"}
"""Default ports by scheme, which browsers omit."""


def host_of(text: str) -> str | None:
    """Returns the normalized host of HOST or HOST:PORT, [HOST] for IPv6; None for any other text."""
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
    """Returns whether a text is an origin as browsers write it: SCHEME://HOST, with :PORT if not the scheme's
    default."""
    found = _ORIGIN.fullmatch(text)
    if found is None or text != text.lower() or host_of(found["host"]) is None:
        return False
    port = found["host"].rpartition(":")[2]
    return port != _OWN_PORTS.get(found["scheme"])
