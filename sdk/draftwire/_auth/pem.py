"""Reads certificates and keys, and finds their faults before a handshake does."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a process: its certificate and private key, both PEM."""

    chain: bytes
    """The certificate, followed by those that signed it."""
    key: bytes = field(repr=False)
    """The private key, without a passphrase."""


def read_identity(cert: str | Path, key: str | Path) -> Identity:
    """Reads a certificate and its key, and checks that they belong together.

    Raises:
        ValueError: the files cannot be used; the message names them.
    """
    identity = Identity(_read(cert), _read(key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a callable OpenSSL would ask the terminal for the passphrase of a key that has one.
        context.load_cert_chain(cert, key, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ValueError(
            f"{cert} and {key} are not a matching certificate and key (PEM, no passphrase): {error}"
        ) from error
    if identity != Identity(_read(cert), _read(key)):
        raise ValueError(f"{cert} and {key} changed while they were read")
    return identity


def read_authorities(path: str | Path) -> bytes:
    """Reads the certificates of one or more authorities.

    Raises:
        ValueError: the file cannot be read or holds none; the message names it.
    """
    pem = _read(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=pem.decode("ascii", "backslashreplace"))  # notes may be in UTF-8
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(f"{path} contains no certificates of authorities (PEM): {error}") from error
    return pem


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
