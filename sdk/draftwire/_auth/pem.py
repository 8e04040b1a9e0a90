"""Reading certificates and keys, and finding out what is wrong with them before a handshake does."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a process is: its certificate and the key that goes with it, both PEM."""

    chain: bytes
    """The certificate, then those that it was signed with."""
    key: bytes = field(repr=False)
    """The private key, without a passphrase."""


def read_identity(cert: str | Path, key: str | Path) -> Identity:
    """Reads a certificate and its key, and check that they belong together.

    Raises:
        ValueError: they cannot be used; the message names the files.
    """
    identity = Identity(_read(cert), _read(key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a callable OpenSSL would ask the terminal for the passphrase of a key that has one.
        context.load_cert_chain(cert, key, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ValueError(
            f"{cert} and {key} are no certificate and key (PEM, no passphrase) of one another: {error}"
        ) from error
    if identity != Identity(_read(cert), _read(key)):
        raise ValueError(f"{cert} and {key} changed while they were read")
    return identity


def read_authorities(path: str | Path) -> bytes:
    """Reads the certificates of authorities, one or more.

    Raises:
        ValueError: there is none in the file; the message names it.
    """
    pem = _read(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(f"{path} holds no certificates (PEM) of authorities: {error}") from error
    return pem


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
