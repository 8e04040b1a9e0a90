"""The settings for TLS and tokens: their checks, the security of calls to other services, and when certificates
expire. Imports no gRPC."""

import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from draftwire._auth.bearer_token import TokenFile
from draftwire._auth.pem import read_authorities
from draftwire._auth.security import Security
from draftwire._auth.tls import PUBLIC, Tls
from draftwire._auth.watched_files import WatchedFiles
from draftwire._types.address import is_loopback_host
from draftwire_core.runtime.process.address import Address
from draftwire_core.runtime.process.flags import flag_of
from draftwire_core.runtime.process.startup_error import StartupError, named_flags

EXPIRY = "certificate_expiry_timestamp_seconds"
"""The metric of `CertificateExpiry`, without the prefix."""
EXPIRY_MEANING = "Time at which the first certificate in the file of a setting expires, in seconds since 1970."
_CERTIFICATES = ("tls_cert", "tls_client_ca", "tls_ca", "tls_client_cert")
"""Settings that name files with certificates."""
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _SHORT_YEAR = 0xA0, 0x17
"""Tags of DER: a certificate's version, which may be left out, and a time whose year has two digits."""


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


class CertificateExpiry:
    """The times at which a process's certificates expire. Files are read again when they change."""

    def __init__(self, settings: TlsSettings) -> None:
        """Reads the files. Raises StartupError if one cannot be used."""
        self._files: dict[str, WatchedFiles[float]] = {}
        for setting in _CERTIFICATES:
            path = getattr(settings, setting)
            if path and path != PUBLIC:
                with named_flags(flag_of(setting)):
                    self._files[setting] = WatchedFiles([path], partial(_first_end, path))

    def seconds(self) -> dict[str, float]:
        """Returns the time in seconds since 1970 at which the first certificate in a file expires, by the setting that
        names the file."""
        return {setting: self.of(setting) for setting in self._files}

    def of(self, setting: str) -> float:
        """Returns the same for one setting, which names a file."""
        return self._files[setting].get()


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


def _first_end(path: str) -> float:
    """The time at which the first of a file's certificates expires. Raises ValueError, naming the file."""
    try:
        found = _CERTIFICATE.findall(Path(path).read_text(encoding="ascii", errors="replace"))  # notes may be in UTF-8
        return min(_end_of(ssl.PEM_cert_to_DER_cert(each)) for each in found)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path} contains no certificate whose end can be read (PEM): {error}") from error


def _end_of(certificate: bytes) -> float:
    """The end of a certificate's validity. `ssl` shows that of peers' and authorities' certificates only."""
    fields = [each for each in _elements(_elements(_elements(certificate)[0][1])[0][1]) if each[0] != _VERSION]
    tag, end = _elements(fields[3][1])[1]  # after the number, the algorithm and the issuer
    text = end.decode("ascii")
    if tag == _SHORT_YEAR:
        text = ("19" if text >= "5" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _elements(der: bytes) -> list[tuple[int, bytes]]:
    """The elements of a sequence, each with its tag and content."""
    found, at = [], 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size & 0x80:  # the long form: how many bytes the size has
            at += size & 0x7F
            size = int.from_bytes(der[at - (size & 0x7F) : at])
        found.append((tag, der[at : at + size]))
        at += size
    return found
