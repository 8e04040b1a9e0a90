"""Connection options shared by all commands that call a service."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any

import typer

from draftwire._auth.bearer_token import TokenFile
from draftwire._auth.tls import PUBLIC, Tls
from draftwire._sync.client import Client

TlsCa = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|public",
        envvar="DRAFTWIRE_TLS_CA",
        help="Connect by TLS and trust these authorities: a PEM file, or public for the public ones.",
    ),
]
TlsCert = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", envvar="DRAFTWIRE_TLS_CLIENT_CERT", help="Certificate to present to services (PEM file)."
    ),
]
TlsKey = Annotated[
    str | None,
    typer.Option(metavar="FILE", envvar="DRAFTWIRE_TLS_CLIENT_KEY", help="Key of --tls-client-cert (PEM file)."),
]
TlsServerName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        envvar="DRAFTWIRE_TLS_SERVER_NAME",
        help="Name that the services' certificates are issued for, if it is not the host called.",
    ),
]
TokenPath = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        envvar="DRAFTWIRE_TOKEN_FILE",
        help="File with the token to present to services.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", envvar="DRAFTWIRE_INSECURE", help="Allow unencrypted connections to other machines."),
]


@dataclass(frozen=True, slots=True)
class Connection:
    """The connection options of a command."""

    tls_ca: str | None = None
    """Authorities to trust, a file or ``public``; None connects unencrypted."""
    tls_client_cert: str | None = None
    """File with the client's certificate."""
    tls_client_key: str | None = None
    """File with the certificate's key."""
    tls_server_name: str | None = None
    """Name to expect in the services' certificates."""
    token_file: str | None = None
    """File with the token to present."""
    insecure: bool = False
    """Whether unencrypted connections may leave the machine."""

    def __post_init__(self) -> None:
        """Checks that options are complete.

        Raises:
            ValueError: an option is missing another that it requires.
        """
        if (self.tls_client_cert is None) != (self.tls_client_key is None):
            raise ValueError("--tls-client-cert, --tls-client-key: each requires the other")
        for option in ("tls_client_cert", "tls_server_name"):
            if getattr(self, option) is not None and self.tls_ca is None:
                raise ValueError(f"--{option.replace('_', '-')}: requires --tls-ca: without it no call uses TLS")

    def options(self) -> dict[str, Any]:
        """Returns the keyword arguments of a client: ``tls``, ``token`` and ``insecure``.

        Raises:
            ValueError: a file cannot be used.
        """
        tls = None
        if self.tls_ca is not None:
            ca = None if self.tls_ca == PUBLIC else self.tls_ca
            tls = Tls(ca, self.tls_client_cert, self.tls_client_key, self.tls_server_name)
        token = None if self.token_file is None else TokenFile(self.token_file)
        return {"tls": tls, "token": token, "insecure": self.insecure}

    def client(self, address: str | Sequence[str], *, timeout: float | None = None) -> Client:
        """Returns a client of the verifiers at these addresses.

        Raises:
            ValueError: a file cannot be used, or an address is on another machine without TLS.
        """
        return Client(address, timeout=timeout, **self.options())


_OPTIONS: dict[str, Any] = {
    "tls_ca": TlsCa,
    "tls_client_cert": TlsCert,
    "tls_client_key": TlsKey,
    "tls_server_name": TlsServerName,
    "token_file": TokenPath,
    "insecure": Insecure,
}


def connecting(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the connection options to a command, which gets them as its keyword argument ``connection``."""

    @wraps(command)
    def run(**values: Any) -> None:
        given = {name: values.pop(name) for name in _OPTIONS}
        command(**values, connection=Connection(**given))

    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "connection"]
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False if name == "insecure" else None, annotation=annotation
        )
        for name, annotation in _OPTIONS.items()
    ]
    # typer reads both, and what `wraps` copied are the command's own.
    run.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *added]}
    return run
