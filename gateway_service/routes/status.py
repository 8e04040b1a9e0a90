"""``/health``, ``/ping``, ``/version`` and ``/metrics``, for operators of the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.responses import Response

from draftwire import AsyncClient, DraftwireError, __version__
from gateway_service.routes.state import GatewayState, errors

_HEALTH_SECONDS = 2.0

_TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

router = APIRouter()


class Health(BaseModel):
    """The result of a successful health check."""

    status: Literal["ok"] = "ok"


@router.head("/health", include_in_schema=False)  # as many load balancers and `wget --spider` ask
@router.get("/health", responses=errors(500, 503, 504))
async def health(state: GatewayState) -> Health:
    """Reports whether a request can be served: whether a verifier accepts calls, which one that loads its model or
    drains does not."""
    if not state.health_checks:
        checking = asyncio.create_task(_one_answers(state.models.serving))
        state.health_checks.append(checking)
        checking.add_done_callback(partial(_forget, state.health_checks))
    await asyncio.shield(state.health_checks[0])
    return Health()


def _forget(checks: list[asyncio.Task[None]], ended: asyncio.Task[None]) -> None:
    """Makes the next health check ask again. The error of this one counts as seen, even if all who asked have left."""
    checks.remove(ended)
    if not ended.cancelled():
        ended.exception()


@router.head("/ping", include_in_schema=False)
@router.get("/ping", responses=errors(500, 503, 504))
async def ping(state: GatewayState) -> Health:
    """Same as `/health`, under the name that some load balancers use."""
    return await health(state)


class Version(BaseModel):
    """The gateway's version."""

    version: str


@router.get("/version")
async def version() -> Version:
    """Returns the gateway's version."""
    return Version(version=__version__)


@router.get(
    "/metrics",
    response_class=Response,
    responses=errors(401) | _TEXT,
)
async def metrics(state: GatewayState) -> Response:
    """Returns the metrics in Prometheus' text format."""
    state.metrics.loads.by_model = await state.models.loads()
    return Response(state.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


async def _one_answers(clients: Sequence[AsyncClient]) -> None:
    """Returns as soon as one of the verifiers answers. Raises the last DraftwireError if none does."""
    asked = [
        asyncio.create_task(client.model_info(address=each.address, timeout=_HEALTH_SECONDS))
        for client in clients
        for each in client.verifiers
    ]
    try:
        failure: DraftwireError | None = None
        for answer in asyncio.as_completed(asked):
            try:
                await answer
            except DraftwireError as error:
                failure = error
            else:
                return
        if failure is not None:
            raise failure
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
