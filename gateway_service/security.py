"""TLS of the gateway's HTTP side and security of its calls to verifiers, created from its settings."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from draftwire._auth.pem import read_authorities, read_identity
from draftwire._auth.watched_files import WatchedFiles
from draftwire._types.verifier import parse_verifiers
from draftwire_core.runtime.process.startup_error import named_flags
from draftwire_core.runtime.process.tls_settings import check_listen, peer_security
from gateway_service.models.model_file import ModelEntry, ModelFile, TargetEntry
from gateway_service.settings import GatewaySettings


class HttpTls:
    """The HTTPS certificate, and the authorities of clients' certificates. Files are read again when they change."""

    def __init__(self, cert: str, key: str, client_ca: str = "") -> None:
        """Reads the files; with `client_ca`, clients must have a certificate of one of these authorities.

        Raises:
            ValueError: the files cannot be used; the message names them.
        """
        self._cert = cert
        self._key = key
        self._client_ca = client_ca
        self._files = WatchedFiles([path for path in (cert, key, client_ca) if path], self._read)

    def context(self) -> ssl.SSLContext:
        """Returns the context to listen with. Each handshake uses the current content of the files."""
        context = self._files.get()  # this context decides whether clients need a certificate

        def choose(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self._files.get()

        context.sni_callback = choose  # called for every handshake, with or without a host name
        return context

    def _read(self) -> ssl.SSLContext:
        read_identity(self._cert, self._key)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._cert, self._key)
        if self._client_ca:
            read_authorities(self._client_ca)
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
            # A resumed session would outlive its authority.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        return context


def http_tls(settings: GatewaySettings) -> HttpTls | None:
    """Returns the TLS of the HTTP side; None for plaintext.

    Raises:
        StartupError: a file cannot be used, or other machines could read plaintext, without --insecure.
    """
    check_listen(settings)
    if not settings.tls_cert:
        return None
    with named_flags("--tls-cert, --tls-key, --tls-client-ca"):
        return HttpTls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)


@dataclass(frozen=True)
class VerifierCalls:
    """How verifiers are called."""

    options: Mapping[str, Any]
    """Keyword arguments of clients: ``tls``, ``token`` and ``insecure``."""
    check: Callable[[str], None]
    """Raises ValueError for an address that would be called without TLS and without --insecure."""


def verifier_calls(settings: GatewaySettings) -> VerifierCalls:
    """Returns how verifiers are called.

    Raises:
        StartupError: a file cannot be used.
    """
    peers = peer_security(settings)
    options = {"tls": peers.tls, "token": peers.token, "insecure": settings.insecure}
    return VerifierCalls(options, peers.security.check)


def served_models(settings: GatewaySettings, calls: VerifierCalls) -> Callable[[], tuple[ModelEntry, ...]]:
    """Returns a function that returns the models to serve: those of the file, or the one of the settings.

    Raises:
        StartupError: the file cannot be used, or a verifier may not be called.
    """
    if settings.models:
        with named_flags("--models"):
            return ModelFile(settings.models, calls.check)
    with named_flags("--verifier"):
        for verifier in parse_verifiers(settings.verifier):
            calls.check(verifier.address)
    only = (ModelEntry(settings.served_model_name, (TargetEntry(settings.verifier),)),)
    return lambda: only
