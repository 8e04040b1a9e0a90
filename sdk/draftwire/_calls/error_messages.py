"""Error messages of failed calls, written for the caller.

The original text stays in ``DraftwireError.details``.
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
"""Beginnings of gRPC's messages for failed connection attempts; other messages are of lost connections."""
_LAST_ERROR = re.compile(r"last error: (?:[A-Z_]+: )?(?:ipv4|ipv6|unix):\S+?: (.*)", re.DOTALL)

_WORDS: tuple[tuple[str, str], ...] = (  # the first match counts
    (r"Connection refused|No such file or directory", "nothing listens at {address}"),
    (
        r"errors resolving|DNS resolution failed|lookup failed|Domain name not found",
        "the host name of {address} cannot be resolved",
    ),
    (r"Network is unreachable|No route to host", "there is no route to {address}"),
    (
        r"WRONG_VERSION_NUMBER",
        "{address} does not speak TLS: connect in plaintext (without tls, --tls-ca), or start it with TLS",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED: (?P<why>[^:]*)",
        "the certificate of {address} is not trusted ({why}): name the authority that signed it (tls, --tls-ca)",
    ),
    (
        r"Hostname Verification|is not in peer certificate|Peer verification",
        "the certificate of {address} is issued for another name: set that name (server_name, --tls-server-name)",
    ),
    (r"(?i)tls handshake failed[^:]*: (?P<why>.*)", "the TLS handshake with {address} failed: {why}"),
    (r"Failed parsing HTTP/2|http1\.x server", "the server at {address} does not speak gRPC"),
    (r"(?i)timed out|timeout|before receiving SETTINGS", "{address} does not answer"),
)
_CLOSED = re.compile(r"Socket closed|Connection reset|Broken pipe|EOF|closed")
_BROKEN = re.compile(
    r"Socket closed|Stream removed|GOAWAY|Connection reset|Broken pipe|keepalive|ping timeout|Connection aborted",
    re.IGNORECASE,
)

log = logging.getLogger(__name__)

_LONGEST_MESSAGE = 2000
"""Longest message in characters; a service may quote a name at full length."""
KINDS = {GENERATE.service: "a verifier", LOAD_MODEL.service: "a drafter"}
"""Services that identify the kind of a server. A server reports the health of only those services that it has."""
_CONTRACT = "draftwire."


def describe_connection(error: DraftwireError, address: str, *, encrypted: bool) -> str | None:
    """Returns a one-line description of a connection failure; None for other errors.

    Args:
        error: the error of a call.
        address: the address as the caller wrote it.
        encrypted: whether the call used TLS.
    """
    if error.reason is not None or not isinstance(error, UnavailableError):
        return None
    return connection_words(error.details, address, encrypted=encrypted)


def connection_words(details: str, address: str, *, encrypted: bool) -> str | None:
    """Returns a description for gRPC's details of an ``UNAVAILABLE``; None if the details are not gRPC's own."""
    if not _CONNECTING.match(details):
        return f"the connection to {address} broke" if _BROKEN.match(details) else None
    for pattern, words in _WORDS:
        found = re.search(pattern, details)
        if found:
            return words.format(address=address, **{name: each.strip() for name, each in found.groupdict().items()})
    if _CLOSED.search(details):
        why = "require a client certificate (tls, --tls-client-cert)" if encrypted else "expect TLS (tls, --tls-ca)"
        return f"{address} closes connections immediately: it may {why}"
    last = _LAST_ERROR.search(details)
    return f"no connection to {address}: {unquote(last[1] if last else details)}"


def explain(error: DraftwireError, method: Method[Any, Any], address: str, *, encrypted: bool) -> DraftwireError:
    """Returns the error, with a message that names the SDK's parameters and describes connection failures.

    Args:
        error: the error of a call.
        method: the method called.
        address: the address called.
        encrypted: whether the call used TLS.
    """
    log.debug(
        "call failed: %s at %s: %s: %s",
        method.path,
        address,
        error.code.name,
        shortened(error.details, _LONGEST_MESSAGE),
    )
    name_parameters(error, method.path)
    error.message = shortened(
        describe_connection(error, address, encrypted=encrypted) or error.message, _LONGEST_MESSAGE
    )
    return error


def is_missing(method: Method[Any, Any], error: DraftwireError) -> bool:
    """Returns whether a server lacks this method of the contract; errors of the service itself have a reason."""
    return method.service.startswith(_CONTRACT) and isinstance(error, UnimplementedError) and error.reason is None


def wrong_service(service: str, address: str, there: Mapping[str, bool], details: str) -> str:
    """Returns the message for a call to the wrong kind of server.

    Args:
        service: full name of the service that was called; all services except the drafter's belong to a verifier.
        address: the address called.
        there: whether the server has each of ``KINDS``.
        details: the server's error message.
    """
    wanted = service if service in KINDS else GENERATE.service
    found = [name for each, name in KINDS.items() if there[each]]
    if there[wanted]:
        said = f" ({details})" if details else ""
        return f"{address} is {KINDS[wanted]} that does not have this call: it is older than this client{said}"
    if found:
        return f"{address} is {found[0]}, not {KINDS[wanted]}"
    return f"the server at {address} is not {KINDS[wanted]}"
