"""``draftwire probe``: health check of a service, for process supervisors."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request
from typing import Annotated

import typer

from draftwire._auth.tls import PUBLIC
from draftwire._calls.failover import RetryPolicy
from draftwire._messages.health import Health
from draftwire._sync.client import Client
from draftwire.cli.connection import Connection, connecting
from draftwire.cli.failure import Failure
from draftwire.errors import NotFoundError

_ONE_ATTEMPT = RetryPolicy(attempts_per_address=1)
"""A single attempt, because the supervisor repeats the probe."""
_URL = ("http://", "https://")
_OK = 200


@connecting
def probe(
    place: Annotated[
        str | None,
        typer.Argument(metavar="HOST:PORT|URL", help="Address or URL, as for --address.", show_default=False),
    ] = None,
    address: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT|URL",
            envvar="DRAFTWIRE_PROBE_ADDRESS",
            help="Address of a verifier or drafter, or the URL of a gateway's /health.",
        ),
    ] = "localhost:50051",
    service: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="One service of the server, such as draftwire.v1.DrafterService. Default: all."
        ),
    ] = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the answer.")] = 5.0,
    *,
    connection: Connection,
) -> None:
    """Check a service's health: exit status 0 if it takes calls, else 1 and a line with the reason.

    Verifiers and drafters are asked by grpc.health.v1, gateways by HTTP. A gateway is healthy if its verifier answers.
    """
    address = place or address
    if address.startswith(_URL):
        if service:
            raise ValueError("--service: applies only to HOST:PORT; a gateway is one service")
        if connection.tls_server_name is not None:
            raise ValueError("--tls-server-name: applies only to HOST:PORT; a URL has the name")
        _ask_http(address, timeout, connection)
    else:
        _ask_grpc(address, service, timeout, connection)
    print(f"{address} is {Health.SERVING}")


def _ask_grpc(address: str, service: str, timeout: float, connection: Connection) -> None:
    with Client(address, timeout=timeout, retry=_ONE_ATTEMPT, **connection.options()) as client:
        try:
            health = client.health(service)
        except NotFoundError as error:
            raise Failure(f"{address} has no service {service}") from error
    if health is not Health.SERVING:
        raise Failure(f"{address} is {health}")


def _ask_http(url: str, timeout: float, connection: Connection) -> None:
    # No proxy: what is probed is near, and a proxy's answer would be its own.
    https = urllib.request.HTTPSHandler(context=https_context(connection))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)
    try:
        with opener.open(url, timeout=timeout) as response:
            if response.status != _OK:
                raise Failure(f"{url} answered {response.status}")
    except urllib.error.HTTPError as error:
        with error:
            raise Failure(f"{url} answered {error.code}") from error
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError around the reason
        raise Failure(f"{url} does not answer: {getattr(error, 'reason', error)}") from error


def https_context(connection: Connection) -> ssl.SSLContext:
    """Returns the TLS context for an HTTPS server: the system's authorities, unless others are named.

    Raises:
        ValueError: a file cannot be used.
    """
    ca = None if connection.tls_ca == PUBLIC else connection.tls_ca
    option, file = "--tls-ca", ca
    try:
        context = ssl.create_default_context(cafile=ca)
        if connection.tls_client_cert is not None:
            option, file = "--tls-client-cert", connection.tls_client_cert
            context.load_cert_chain(connection.tls_client_cert, connection.tls_client_key)
    except OSError as error:  # ssl.SSLError is one, too
        raise ValueError(f"{option}: {file}: {error.strerror or error}") from error
    return context
