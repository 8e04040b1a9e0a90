"""Addresses in text form: HOST:PORT, with an IPv6 host in brackets."""

import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

_MAX_PORT = 65535
_LOOPBACK = "127.0.0.1"
_THIS_MACHINE = ("localhost", "0.0.0.0", "::", "::1")
"""Other hosts at which this machine calls itself."""


@dataclass(frozen=True)
class Address:
    """A host and a port."""

    host: str
    """Name or IP address; an IPv6 address without its brackets."""
    port: int
    """TCP port, 0 to 65535; 0, for listening only, asks the system for a free port."""

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parses HOST:PORT or [IPV6]:PORT. Raises ValueError when the text has another form."""
        host, separator, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if bracketed:
            host = host[1:-1]
        # gRPC reads escapes: a name that ends with .DOMAIN could call another host, as 10.0.0.1%00.DOMAIN does.
        known = _is_ipv6(host) if bracketed else not any(c in host for c in "%[]/: ")
        if not separator or not host or not known:
            raise ValueError(f"must be HOST:PORT ([HOST]:PORT for IPv6), got {text!r}")
        if not (port.isascii() and port.isdigit() and int(port) <= _MAX_PORT):
            raise ValueError(f"must end in a port from 0 to {_MAX_PORT}, got {text!r}")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_ipv6(host: str) -> bool:
    with suppress(ValueError):
        return bool(ipaddress.IPv6Address(host))
    return False


def _listen_address(text: str) -> str:
    return str(Address.parse(text))


def peer_address(text: str) -> str:
    """Parses the address of another service and returns its normalized form. Raises ValueError."""
    address = Address.parse(text)
    if address.port == 0:
        raise ValueError(f"must name a port other than 0, got {text!r}")
    return str(address)


def place_of(text: str) -> str:
    """Returns one text for all spellings of an address, HOST:PORT, that differ in case, in a final dot, in the form of
    an IP address or in its zone, and for all of this machine. Any other text is returned as it is."""
    try:
        address = Address.parse(text)
    except ValueError:
        return text
    host = address.host.lower().rstrip(".")
    with suppress(ValueError):
        ip = ipaddress.ip_address(host)
        host = str(getattr(ip, "ipv4_mapped", None) or ip).partition("%")[0]  # gRPC takes any zone of most addresses
    return str(Address(_LOOPBACK if host in _THIS_MACHINE else host, address.port))


ListenAddress = Annotated[str, AfterValidator(_listen_address)]
"""Type of a settings field that holds HOST:PORT to listen on; port 0 picks a free one."""

PeerAddress = Annotated[str, AfterValidator(peer_address)]
"""Type of a settings field that holds HOST:PORT of another service."""
