"""Waiting for a drafter to be ready, and what to say when it is not."""

from __future__ import annotations

import asyncio
from typing import cast

import grpc

from drafter_pool.drafter.pooled_drafter import PooledDrafter
from draftwire.v1.error_reason_pb2 import ErrorReason
from service_runtime.errors import ServiceError, failed_precondition
from service_runtime.rpc.message_stream import StreamBroken

_CONTACT_SECONDS = 10.0


async def ready(drafter: PooledDrafter) -> None:
    """Wait for a drafter's first handshake. Raises ServiceError if it fails or takes too long."""
    if drafter.ready:
        return
    try:
        async with asyncio.timeout(_CONTACT_SECONDS):
            await asyncio.shield(drafter.contact)
    except (StreamBroken, TimeoutError) as error:
        raise unreachable(drafter.address, error) from error
    if not drafter.ready:
        raise unreachable(drafter.address)


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
