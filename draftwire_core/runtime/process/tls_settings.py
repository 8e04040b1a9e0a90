"""The settings for TLS and tokens: their checks, and the security of calls to other services. Imports no gRPC."""

from dataclasses import dataclass
from typing import Protocol

from draftwire._auth.bearer_token import TokenFile
from draftwire._auth.pem import read_authorities
from draftwire._auth.security import Security
from draftwire._auth.tls import PUBLIC, Tls
from draftwire._types.address import is_loopback_host
from draftwire_core.runtime.process.address import Address
from draftwire_core.runtime.process.flags import flag_of
from draftwire_core.runtime.process.startup_error import StartupError, named_flags


class TlsSettings(Protocol):
    """The settings of a process that listens and calls other services. One that is not set is None or empty."""

    @property
    def listen(self) -> str:
        """Address to listen on, HOST:PORT."""

    @property
    def tls_cert(self) -> str | None:
        """File with the process's certificate."""

    @property
    def tls_key(self) -> str | None:
        """File with that certificate's key."""

    @property
    def tls_client_ca(self) -> str | None:
        """File with the authorities of callers' certificates."""

    @property
    def tls_ca(self) -> str | None:
        """File with the authorities of other services' certificates, or `public`."""

    @property
    def tls_client_cert(self) -> str | None:
        """File with the certificate to present to other services."""

    @property
    def tls_client_key(self) -> str | None:
        """File with that certificate's key."""

    @property
    def tls_server_name(self) -> str | None:
        """Name that other services' certificates are issued for."""

    @property
    def token_file(self) -> str | None:
        """File with the token to present to other services."""

    @property
    def insecure(self) -> bool:
        """Whether connections beyond this machine may be unencrypted."""


@dataclass(frozen=True)
class PeerSecurity:
    """TLS and token for calls to other services."""

    tls: Tls | None
    """TLS of the calls; None for plaintext."""
    token: TokenFile | None
    """Token of the calls; None sends none."""
    security: Security
    """TLS and token together, with the check of plaintext addresses."""


def check_tls_settings(settings: TlsSettings) -> None:
    """Checks that settings that need each other are set together. Raises ValueError."""
    for one, other in (("tls_cert", "tls_key"), ("tls_client_cert", "tls_client_key")):
        if bool(getattr(settings, one)) != bool(getattr(settings, other)):
            given, missing = (one, other) if getattr(settings, one) else (other, one)
            raise ValueError(f"{flag_of(given)}: requires {flag_of(missing)}")
    if settings.tls_client_ca and not settings.tls_cert:
        raise ValueError("--tls-client-ca: requires --tls-cert and --tls-key")
    for field in ("tls_client_cert", "tls_server_name"):
        if getattr(settings, field) and not settings.tls_ca:
            raise ValueError(f"{flag_of(field)}: requires --tls-ca: without it no call uses TLS")


def check_listen(settings: TlsSettings) -> None:
    """Raises StartupError if other machines could read what the process receives, unless --insecure is set."""
    if not (settings.tls_cert or settings.insecure or is_loopback_host(Address.parse(settings.listen).host)):
        raise StartupError(
            f"--listen: {settings.listen} is open to other machines, without encryption: give --tls-cert and "
            "--tls-key, or allow it with --insecure"
        )


def peer_security(settings: TlsSettings) -> PeerSecurity:
    """Reads the files for calls to other services. Raises StartupError when one cannot be used."""
    tls: Tls | None = None
    if settings.tls_ca:
        ca = None if settings.tls_ca == PUBLIC else settings.tls_ca
        if ca is not None:
            with named_flags("--tls-ca"):
                read_authorities(ca)
        cert, key = settings.tls_client_cert or settings.tls_cert, settings.tls_client_key or settings.tls_key
        tls = Tls(ca, cert or None, key or None, settings.tls_server_name or None)
    with named_flags("--token-file"):
        token = TokenFile(settings.token_file) if settings.token_file else None
    with named_flags("--tls-client-cert, --tls-client-key"):
        security = Security(tls=tls, token=token, insecure=settings.insecure)
    return PeerSecurity(tls, token, security)
