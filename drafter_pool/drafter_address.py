"""Addresses of drafters, as calls give them."""

from __future__ import annotations

import grpc

from draftwire.v1.error_reason_pb2 import ErrorReason
from service_runtime.address import peer_address
from service_runtime.errors import ServiceError, invalid_field

_LOCAL_SCHEME = "local:"
_MAX_LENGTH = 1024
"""Characters of an address, and of a name: both go with the text that a drafter drafted, and into the log."""


def is_local(address: str) -> bool:
    """Whether an address names a drafter in the verifier."""
    return address.startswith(_LOCAL_SCHEME)


def read_service_address(field: str, address: str) -> str:
    """The address of a drafter service, of a request's field, in its one form. Raises ServiceError."""
    check_text(field, address)
    if is_local(address):
        raise ServiceError(
            grpc.StatusCode.INVALID_ARGUMENT,
            ErrorReason.ERROR_REASON_UNSUPPORTED_DRAFTER,
            f"{field}: {address!r} is a drafter in the verifier; here that of a service is wanted, HOST:PORT",
        )
    try:
        return peer_address(address)
    except ValueError as error:
        raise invalid_field(field, str(error)) from error


def read_name(field: str, name: str) -> str:
    """The name of a request's field, which may be empty. Raises ServiceError."""
    check_text(field, name)
    return name


def check_text(field: str, text: str) -> None:
    """Raise ServiceError for an address or a name that does not fit into lists and logs."""
    if len(text) > _MAX_LENGTH or not text.isprintable():
        raise invalid_field(field, f"must be at most {_MAX_LENGTH} printable characters")
