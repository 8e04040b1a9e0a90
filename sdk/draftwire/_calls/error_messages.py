"""Messages of failed calls, written for the person who made the call.

The text that came over the wire stays in ``DraftwireError.details``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from draftwire._messages.field_names import name_parameters
from draftwire._messages.methods import GENERATE, LOAD_MODEL, Method
from draftwire._types.quoting import shortened
from draftwire.errors import DraftwireError, UnavailableError, UnimplementedError

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


log = logging.getLogger(__name__)

_LONGEST_MESSAGE = 2000
"""Characters of a message; a service may quote a name as long as it was sent."""


KINDS = {GENERATE.service: "a verifier", LOAD_MODEL.service: "a drafter"}
"""Services by which a server is known, whose health it is asked for: it tells that of those it has, and of no other."""
_CONTRACT = "draftwire."


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


def explain(error: DraftwireError, method: Method[Any, Any], address: str, *, encrypted: bool) -> DraftwireError:
    """Return the error, with a message that names the SDK's parameters and says what befell the connection.

    Args:
        error: what a call failed with.
        method: what was called.
        address: where.
        encrypted: whether the call went by TLS.
    """
    log.debug("%s at %s: %s: %s", method.path, address, error.code.name, shortened(error.details, _LONGEST_MESSAGE))
    name_parameters(error, method.path)
    error.message = shortened(
        describe_connection(error, address, encrypted=encrypted) or error.message, _LONGEST_MESSAGE
    )
    return error


def is_missing(method: Method[Any, Any], error: DraftwireError) -> bool:
    """Return whether a server knows no such method of the contract; a service's own answers have a reason."""
    return method.service.startswith(_CONTRACT) and isinstance(error, UnimplementedError) and error.reason is None


def wrong_service(service: str, address: str, there: Mapping[str, bool], details: str) -> str:
    """Return what is to be said of an address.

    Args:
        service: full name of the service that was called; one that is no drafter's belongs to a verifier.
        address: where it was called.
        there: of each of ``KINDS`` whether the server has it.
        details: the words of the server.
    """
    wanted = service if service in KINDS else GENERATE.service
    found = [name for each, name in KINDS.items() if there[each]]
    if there[wanted]:
        said = f" ({details})" if details else ""
        return f"{address} is {KINDS[wanted]} without this call, and older than what calls it{said}"
    if found:
        return f"{address} is {found[0]}, not {KINDS[wanted]}"
    return f"what listens at {address} is not {KINDS[wanted]}"
