"""Addresses, names and labels of drafters, read from request fields."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.runtime.errors import ServiceError, invalid_field
from draftwire_core.runtime.process.address import peer_address

_LOCAL_SCHEME = "local:"
_MAX_LENGTH = 1024
"""Maximum characters of an address or a name: both are logged and returned with the text that a drafter drafted."""


def is_local(address: str) -> bool:
    """Whether an address names a local drafter, in the verifier."""
    return address.startswith(_LOCAL_SCHEME)


def read_service_address(field: str, address: str) -> str:
    """Returns the canonical form of a drafter service's address in a request's field. Raises ServiceError."""
    check_text(field, address)
    if is_local(address):
        raise ServiceError(
            grpc.StatusCode.INVALID_ARGUMENT,
            ErrorReason.ERROR_REASON_UNSUPPORTED_DRAFTER,
            f"{field}: {address!r} is a drafter in the verifier; expected the address of a service, HOST:PORT",
        )
    try:
        return peer_address(address)
    except ValueError as error:
        raise invalid_field(field, str(error)) from error


def read_name(field: str, name: str) -> str:
    """Returns the name in a request's field, which may be empty. Raises ServiceError."""
    check_text(field, name)
    return name


def check_text(field: str, text: str) -> None:
    """Raises ServiceError for an address or a name that is too long or not printable."""
    if len(text) > _MAX_LENGTH or not text.isprintable():
        raise invalid_field(field, f"must be at most {_MAX_LENGTH} printable characters")


_MAX_LABELS = 16
_MAX_KEY_LENGTH = 64
_MAX_VALUE_LENGTH = 256


def read_labels(field: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Returns the labels in a request's field. Raises ServiceError (INVALID_FIELD) if they exceed the limits."""
    if len(labels) > _MAX_LABELS:
        raise invalid_field(field, f"has {len(labels)} labels, at most {_MAX_LABELS} are allowed")
    for key, value in labels.items():
        if not 1 <= len(key) <= _MAX_KEY_LENGTH:
            raise invalid_field(field, f"a key must have 1 to {_MAX_KEY_LENGTH} characters, got {len(key)}")
        if len(value) > _MAX_VALUE_LENGTH:
            raise invalid_field(f"{field}[{key!r}]", f"must have at most {_MAX_VALUE_LENGTH} characters")
    return dict(labels)
