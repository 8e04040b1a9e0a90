"""Protection of a client's calls: TLS and a bearer token."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from draftwire._auth.bearer_token import TokenSource, checked_token
from draftwire._auth.tls import Tls, TlsCredentials
from draftwire._types.address import is_loopback

Metadata = tuple[tuple[str, str], ...]

ClientName = Callable[[], str | None]
"""A function that returns the name of the client that the current call is for, or None."""

ON_BEHALF_OF = "draftwire-on-behalf-of"
"""Metadata with the name of the client that a gateway's call is for; believed of tokens with the role ``gateway``."""


class Security:
    """Encryption and authentication of a client. Safe to use from several threads; its ``repr`` shows no secret."""

    def __init__(
        self,
        *,
        tls: Tls | None = None,
        token: TokenSource | None = None,
        insecure: bool = False,
        credentials: grpc.ChannelCredentials | None = None,
        on_behalf_of: ClientName | None = None,
    ) -> None:
        """Reads the files of ``tls``.

        Args:
            tls: TLS settings; None connects unencrypted.
            token: the token to present to the service, or a function that returns it.
            insecure: allow unencrypted calls to other machines.
            credentials: gRPC channel credentials instead of ``tls``.
            on_behalf_of: returns the name of the client that the current call is for; for gateways.

        Raises:
            ValueError: unusable files, an invalid token, or both ``tls`` and ``credentials``.
        """
        if tls is not None and credentials is not None:
            raise ValueError("tls and credentials: give only one of them")
        if isinstance(token, str):
            checked_token(token)
        self._tls = None if tls is None else TlsCredentials(tls)
        self._server_name = None if tls is None else tls.server_name
        self._token = token
        self._insecure = insecure
        self._credentials = credentials
        self._on_behalf_of = on_behalf_of

    def __repr__(self) -> str:
        """Returns the settings, without secrets."""
        return f"Security(tls={self.encrypted}, token={self._token is not None}, insecure={self._insecure})"

    @property
    def encrypted(self) -> bool:
        """Whether calls use TLS."""
        return self._tls is not None or self._credentials is not None

    @property
    def server_name(self) -> str | None:
        """Name that certificates must be for, if it differs from that in the address."""
        return self._server_name

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Returns the credentials for a new channel, or None without TLS. The object changes only with the files."""
        return self._credentials if self._tls is None else self._tls.current()

    def check(self, address: str) -> None:
        """Checks that calls to an address are allowed.

        Raises:
            ValueError: unencrypted calls to another machine are not allowed.
        """
        if not self.encrypted and not self._insecure and not is_loopback(address):
            raise ValueError(
                f"{address} is on another machine, and calls to it would not be encrypted: connect by TLS (tls, "
                "--tls-ca), or allow it (insecure, --insecure)"
            )

    def metadata(self) -> Metadata:
        """Returns the metadata of a call: the token, and the name of the client that the call is for.

        Raises:
            ValueError: the token function returned an invalid token.
        """
        metadata: Metadata = ()
        if self._token is not None:
            token = self._token if isinstance(self._token, str) else checked_token(self._token())
            metadata = (("authorization", f"Bearer {token}"),)
        client = None if self._on_behalf_of is None else self._on_behalf_of()
        return metadata if client is None else (*metadata, (ON_BEHALF_OF, client))
