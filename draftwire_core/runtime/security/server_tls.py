"""TLS on a server's side; with the tokens that it accepts, created from a service's settings."""

from pathlib import Path

import grpc

from draftwire._auth.pem import read_authorities, read_identity
from draftwire._auth.watched_files import WatchedFiles
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.process.startup_error import named_flags
from draftwire_core.runtime.process.tls_settings import check_listen
from draftwire_core.runtime.security.accepted_tokens import AcceptedTokens


class ServerTls:
    """A server's certificate and key, and the authorities of its clients. Files are read again when they change.

    New handshakes use the changed files; open connections are unaffected.
    """

    def __init__(self, cert: str | Path, key: str | Path, client_ca: str | Path | None) -> None:
        """Reads the files. client_ca: clients must have a certificate of one of these authorities.

        Raises ValueError, naming the file, when one cannot be used.
        """
        self._cert = cert
        self._key = key
        self._client_ca = client_ca
        self._files = WatchedFiles([path for path in (cert, key, client_ca) if path is not None], self._read)

    def credentials(self) -> grpc.ServerCredentials:
        """Returns the credentials to listen with. gRPC asks for the files' content from a thread of its own."""
        credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
            self._files.get(), self._files.get, require_client_authentication=self._client_ca is not None
        )
        return credentials

    def _read(self) -> grpc.ServerCertificateConfiguration:
        identity = read_identity(self._cert, self._key)
        authorities = None if self._client_ca is None else read_authorities(self._client_ca)
        return grpc.ssl_server_certificate_configuration([(identity.key, identity.chain)], authorities)


def server_tls(settings: ServiceSettings) -> ServerTls | None:
    """Returns the TLS of the server; None if it serves in plaintext.

    Raises StartupError if a file cannot be used, or if others could read the traffic and --insecure does not allow it.
    """
    check_listen(settings)
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    with named_flags("--tls-cert, --tls-key"):
        read_identity(settings.tls_cert, settings.tls_key)
    with named_flags("--tls-client-ca"):
        return ServerTls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)


def accepted_tokens(settings: ServiceSettings) -> AcceptedTokens | None:
    """Returns the tokens that callers need; None if they need none. Raises StartupError for an unusable file."""
    if settings.accepted_tokens is None:
        return None
    with named_flags("--accepted-tokens"):
        return AcceptedTokens(settings.accepted_tokens)
