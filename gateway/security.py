"""What protects the gateway's two sides, made from its settings."""

from __future__ import annotations

import ssl
from typing import Any

from draftwire import Tls, TokenFile
from draftwire._auth.pem import read_authorities, read_identity
from draftwire._auth.security import Security
from draftwire._auth.tls import PUBLIC
from draftwire._auth.watched_files import WatchedFiles
from draftwire._types.address import is_loopback
from draftwire._types.verifier import parse_verifiers
from gateway.settings import GatewaySettings


class HttpTls:
    """The certificate that HTTPS is served with, and whose clients it takes. Files are read again when they change."""

    def __init__(self, cert: str, key: str, client_ca: str = "") -> None:
        """Read the files; with `client_ca` clients have to have a certificate of one of these authorities.

        Raises:
            ValueError: they cannot be used; the message names them.
        """
        self._cert = cert
        self._key = key
        self._client_ca = client_ca
        self._files = WatchedFiles([path for path in (cert, key, client_ca) if path], self._read)

    def context(self) -> ssl.SSLContext:
        """Return the context to listen with. Each handshake takes what the files hold then."""
        context = self._files.get()  # whether clients need a certificate is this one's to say

        def choose(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self._files.get()

        context.sni_callback = choose  # called for every handshake, whether the client names a host or not
        return context

    def _read(self) -> ssl.SSLContext:
        read_identity(self._cert, self._key)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._cert, self._key)
        if self._client_ca:
            read_authorities(self._client_ca)
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
            # A session that is resumed would outlive its authority.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        return context


def http_tls(settings: GatewaySettings) -> HttpTls | None:
    """Return the TLS of the HTTP side; None where it is not encrypted.

    Raises:
        ValueError: a file cannot be used, or others could read what is not encrypted, which nobody allowed.
    """
    if not settings.tls_cert:
        if not settings.insecure and not is_loopback(settings.listen):
            raise ValueError(
                f"--listen: {settings.listen} is open to other machines, and nothing would be encrypted: give "
                "--tls-cert and --tls-key, or allow it with --insecure"
            )
        return None
    try:
        return HttpTls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    except ValueError as error:
        raise ValueError(f"--tls-cert, --tls-key, --tls-client-ca: {error}") from error


def client_options(settings: GatewaySettings) -> dict[str, Any]:
    """Return the keyword arguments of the verifiers' client: ``tls``, ``token`` and ``insecure``.

    Raises:
        ValueError: a file cannot be used, or a verifier would be called in the clear, which nobody allowed.
    """
    tls: Tls | None = None
    if settings.tls_ca:
        ca = None if settings.tls_ca == PUBLIC else settings.tls_ca
        if ca is not None:
            try:
                read_authorities(ca)
            except ValueError as error:
                raise ValueError(f"--tls-ca: {error}") from error
        cert, key = settings.tls_client_cert or settings.tls_cert, settings.tls_client_key or settings.tls_key
        tls = Tls(ca, cert or None, key or None, settings.tls_server_name or None)
    try:
        token = TokenFile(settings.token_file) if settings.token_file else None
    except ValueError as error:
        raise ValueError(f"--token-file: {error}") from error
    options = {"tls": tls, "token": token, "insecure": settings.insecure}
    try:
        security = Security(tls=tls, token=token, insecure=settings.insecure)
    except ValueError as error:
        raise ValueError(f"--tls-client-cert, --tls-client-key: {error}") from error
    for verifier in parse_verifiers(settings.verifier):
        try:
            security.check(verifier.address)
        except ValueError as error:
            raise ValueError(f"--verifier: {error}") from error
    return options
