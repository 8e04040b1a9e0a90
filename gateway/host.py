"""The host of a request: a name or an address, perhaps with a port."""

from __future__ import annotations

import ipaddress
import re

_FORM = re.compile(
    r"(?:\[(?P<v6>[0-9a-f:.]{2,45})\]|(?P<name>[a-z0-9_](?:[a-z0-9_.-]{0,253}[a-z0-9_])?\.?))(?::\d{1,5})?"
)


def host_of(text: str) -> str | None:
    """Return the host of HOST or HOST:PORT, [HOST] for IPv6, in its one form; None for anything else."""
    found = _FORM.fullmatch(text.lower())
    if found is None:
        return None
    if found["v6"] is None:
        return str(found["name"]).removesuffix(".")
    try:
        return str(ipaddress.IPv6Address(found["v6"]))
    except ValueError:
        return None
