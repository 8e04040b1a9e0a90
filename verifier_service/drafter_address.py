"""Addresses of drafters, as calls give them, and what it means when nobody answers there."""

from __future__ import annotations

from typing import cast

import grpc

from draftwire.v1.error_reason_pb2 import ErrorReason
from service_runtime.address import peer_address
from service_runtime.errors import ServiceError, failed_precondition, invalid_field
from service_runtime.message_stream import StreamBroken


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


def unreachable(address: str, why: Exception | str | None = None) -> ServiceError:
    """What to tell whoever wanted a drafter that is not ready: its own words when it found that the two sides do not
    fit, UNAVAILABLE otherwise."""
    if isinstance(why, StreamBroken) and why.code is grpc.StatusCode.FAILED_PRECONDITION:
        reason = dict(ErrorReason.items()).get(f"ERROR_REASON_{why.reason_name}")
        if reason is not None:
            return failed_precondition(cast(ErrorReason, reason), why.status.message)
    cause = f": {why}" if why is not None and str(why) else ""
    return ServiceError(
        grpc.StatusCode.UNAVAILABLE,
        ErrorReason.ERROR_REASON_DRAFTER_UNREACHABLE,
        f"drafter at {address} is not ready{cause}",
    )
