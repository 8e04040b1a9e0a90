"""Addresses of drafters, as calls give them."""

from __future__ import annotations

import grpc

from draftwire.v1.error_reason_pb2 import ErrorReason
from service_runtime.address import peer_address
from service_runtime.errors import ServiceError, invalid_field
from verifier_service.local_address import is_local, read_local_address


def read_address(field: str, address: str) -> str:
    """The address of a request's field in its one form. Raises ServiceError."""
    return read_local_address(field, address) if is_local(address) else read_service_address(field, address)


def read_service_address(field: str, address: str) -> str:
    """The same where only a drafter service may be named. Raises ServiceError."""
    if is_local(address):
        raise ServiceError(
            grpc.StatusCode.INVALID_ARGUMENT,
            ErrorReason.ERROR_REASON_UNSUPPORTED_DRAFTER,
            f"{address!r} is a drafter in the verifier, which is attached and does not announce itself",
        )
    try:
        return peer_address(address)
    except ValueError as error:
        raise invalid_field(field, str(error)) from error
