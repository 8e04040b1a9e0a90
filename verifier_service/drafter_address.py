"""Addresses of drafters, as calls give them."""

from __future__ import annotations

import grpc

from draftwire.v1.error_reason_pb2 import ErrorReason
from service_runtime.address import peer_address
from service_runtime.errors import ServiceError, invalid_field


def read_address(field: str, address: str) -> str:
    """The address of a request's field in its one form. Raises ServiceError."""
    if address.startswith("local:"):
        raise ServiceError(
            grpc.StatusCode.INVALID_ARGUMENT,
            ErrorReason.ERROR_REASON_UNSUPPORTED_DRAFTER,
            f"this verifier serves no drafter of its own called {address!r}; give HOST:PORT of a drafter service",
        )
    try:
        return peer_address(address)
    except ValueError as error:
        raise invalid_field(field, str(error)) from error
