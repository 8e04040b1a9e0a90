"""Words for connections that fail, in place of gRPC's own, which name an address as it went into its resolver."""

from __future__ import annotations

import re
from urllib.parse import unquote

from draftwire.errors import DraftwireError, UnavailableError

_CONNECTING = re.compile(r"failed to connect to all addresses|errors resolving|DNS resolution failed")
"""Beginnings of the library's messages where no connection came about; other messages are of connections that broke."""
_LAST_ERROR = re.compile(r"last error: (?:[A-Z_]+: )?(?:ipv4|ipv6|unix):\S+?: (.*)", re.DOTALL)

_WORDS: tuple[tuple[str, str], ...] = (  # the first that is found counts
    (r"Connection refused|No such file or directory", "nothing listens at {address}"),
    (
        r"errors resolving|DNS resolution failed|lookup failed|Domain name not found",
        "the host name of {address} cannot be resolved",
    ),
    (r"Network is unreachable|No route to host", "there is no way to {address} in the network"),
    (
        r"WRONG_VERSION_NUMBER",
        "{address} does not speak TLS: connect to it in the clear (without tls, --tls-ca), or start it with TLS",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED: (?P<why>[^:]*)",
        "the certificate of {address} is not trusted ({why}): name the authority that signed it (tls, --tls-ca)",
    ),
    (
        r"Hostname Verification|is not in peer certificate|Peer verification",
        "the certificate of {address} is for another name: give the one it is for (server_name, --tls-server-name)",
    ),
    (r"(?i)tls handshake failed[^:]*: (?P<why>.*)", "the TLS handshake with {address} failed: {why}"),
    (r"Failed parsing HTTP/2|http1\.x server", "what listens at {address} does not speak gRPC"),
    (r"(?i)timed out|timeout|before receiving SETTINGS", "{address} does not answer"),
)
_CLOSED = re.compile(r"Socket closed|Connection reset|Broken pipe|EOF|closed")
_BROKEN = re.compile(
    r"Socket closed|Stream removed|GOAWAY|Connection reset|Broken pipe|keepalive|ping timeout|Connection aborted",
    re.IGNORECASE,
)


def describe_connection(error: DraftwireError, address: str, *, encrypted: bool) -> str | None:
    """Return what befell a connection, in words of one line; None where the error is none of that kind.

    Args:
        error: what a call failed with.
        address: where the call went, as its caller wrote it.
        encrypted: whether it went by TLS.
    """
    if error.reason is not None or not isinstance(error, UnavailableError):
        return None
    return connection_words(error.details, address, encrypted=encrypted)


def connection_words(details: str, address: str, *, encrypted: bool) -> str | None:
    """Return the words for gRPC's details of an ``UNAVAILABLE``; None where they are not the library's."""
    if not _CONNECTING.match(details):
        return f"the connection to {address} broke" if _BROKEN.match(details) else None
    for pattern, words in _WORDS:
        found = re.search(pattern, details)
        if found:
            return words.format(address=address, **{name: each.strip() for name, each in found.groupdict().items()})
    if _CLOSED.search(details):
        why = "ask for a client's certificate (tls, --tls-client-cert)" if encrypted else "expect TLS (tls, --tls-ca)"
        return f"{address} closes connections at once: it may {why}"
    last = _LAST_ERROR.search(details)
    return f"no connection to {address}: {unquote(last[1] if last else details)}"
