"""TLS from a client's side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from draftwire._auth.pem import read_authorities, read_identity
from draftwire._auth.watched_files import WatchedFiles

PUBLIC = "public"
"""In place of a file of authorities, where a setting names one: those that gRPC brings with it."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Which services to trust, and who the client is. Files are PEM, and are read again when they change.

    A new connection takes what the files hold then; calls that run stay on theirs.
    """

    ca: str | Path | None = None
    """File with the authorities that may have signed a service's certificate; None trusts the public ones that gRPC
    brings with it."""
    cert: str | Path | None = None
    """File with the client's own certificate, for services that ask for one (mutual TLS)."""
    key: str | Path | None = None
    """File with its key."""
    server_name: str | None = None
    """Name that the service's certificate is for, where that is not the name in the address."""

    def __post_init__(self) -> None:
        """Checks what belongs together.

        Raises:
            ValueError: a certificate without its key, or the reverse.
        """
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls: cert and key go together")


class TlsCredentials:
    """gRPC's credentials from the files of a ``Tls``. Safe to use from several threads."""

    def __init__(self, tls: Tls) -> None:
        """Reads the files.

        Raises:
            ValueError: they cannot be used; the message names the file.
        """
        self._tls = tls
        paths = [path for path in (tls.ca, tls.cert, tls.key) if path is not None]
        self._files = WatchedFiles(paths, self._read)

    def current(self) -> grpc.ChannelCredentials:
        """Returns the credentials for a new channel: the same object until the files have changed."""
        return self._files.get()

    def _read(self) -> grpc.ChannelCredentials:
        tls = self._tls
        authorities = None if tls.ca is None else read_authorities(tls.ca)
        if tls.cert is None or tls.key is None:
            return grpc.ssl_channel_credentials(authorities)
        identity = read_identity(tls.cert, tls.key)
        return grpc.ssl_channel_credentials(authorities, identity.key, identity.chain)
