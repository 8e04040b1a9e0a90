"""TLS on a server's side."""

from pathlib import Path

import grpc

from draftwire._auth.pem import read_authorities, read_identity
from draftwire._auth.watched_files import WatchedFiles


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
