"""``/health`` and ``/metrics``, for those who run the gateway."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.responses import Response

from gateway.state import GatewayState, errors

_HEALTH_SECONDS = 2.0

_TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

router = APIRouter()


class Health(BaseModel):
    """All is well."""

    status: Literal["ok"] = "ok"


@router.get("/health", responses=errors(500, 503, 504))
async def health(state: GatewayState) -> Health:
    """Tell whether a verifier answers."""
    await state.client.model_info(timeout=_HEALTH_SECONDS)
    return Health()


@router.get(
    "/metrics",
    response_class=Response,
    responses=errors(401) | _TEXT,
)
async def metrics(state: GatewayState) -> Response:
    """Tell the counters, in Prometheus' text format."""
    return Response(state.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)
