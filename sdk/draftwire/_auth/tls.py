"""TLS settings and credentials of a client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from draftwire._auth.pem import read_authorities, read_identity
from draftwire._auth.watched_files import WatchedFiles

PUBLIC = "public"
"""Value of a setting for an authorities file that selects the public authorities bundled with gRPC."""


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings: the authorities to trust and the client's own identity. Files are PEM.

    Changed files are read again for new connections; running calls stay on theirs.
    """

    ca: str | Path | None = None
    """File with the authorities trusted to sign a service's certificate; None trusts the public ones bundled with
    gRPC."""
    cert: str | Path | None = None
    """File with the client's own certificate, for services that require one (mutual TLS)."""
    key: str | Path | None = None
    """File with the certificate's private key."""
    server_name: str | None = None
    """Name that the service's certificate is for, if it differs from that in the address."""

    def __post_init__(self) -> None:
        """Checks that certificate and key are given together.

        Raises:
            ValueError: one of them is missing.
        """
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls: cert and key require each other")


class TlsCredentials:
    """gRPC credentials from the files of a ``Tls``. Safe to use from several threads."""

    def __init__(self, tls: Tls) -> None:
        """Reads the files.

        Raises:
            ValueError: a file cannot be used; the message names it.
        """
        self._tls = tls
        paths = [path for path in (tls.ca, tls.cert, tls.key) if path is not None]
        self._files = WatchedFiles(paths, self._read)

    def current(self) -> grpc.ChannelCredentials:
        """Returns the credentials for a new channel. The object changes only with the files."""
        return self._files.get()

    def _read(self) -> grpc.ChannelCredentials:
        tls = self._tls
        authorities = None if tls.ca is None else read_authorities(tls.ca)
        if tls.cert is None or tls.key is None:
            return grpc.ssl_channel_credentials(authorities)
        identity = read_identity(tls.cert, tls.key)
        return grpc.ssl_channel_credentials(authorities, identity.key, identity.chain)
