"""``/v1/models``."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request

from gateway_service.keys.grant import Grant
from gateway_service.routes.state import GatewayState, State, errors

router = APIRouter()


class ModelCard(BaseModel):
    """A served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    """Start of serving by this gateway, in seconds of Unix time."""
    owned_by: str = "draftwire"
    root: str
    """The verifier's own name of the model."""
    max_model_len: int
    """Most tokens of prompt and output together."""


class ModelList(BaseModel):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


@router.get("/v1/models", responses=errors(401, 500, 503, 504))
async def list_models(request: Request, state: GatewayState) -> ModelList:
    """Lists the names of the served model that the key permits."""
    grant: Grant | None = request.state.grant
    names = [name for name in await state.served.names() if grant is None or grant.key.permits(name)]
    return ModelList(data=[await _card(state, name) for name in names])


@router.get("/v1/models/{model:path}", responses=errors(400, 401, 403, 404, 500, 503, 504))
async def get_model(model: str, request: Request, state: GatewayState) -> ModelCard:
    """Returns the served model under one of its names."""
    return await _card(state, await state.model(request, model))


async def _card(state: State, name: str) -> ModelCard:
    info = await state.served.info()
    return ModelCard(
        id=name, created=state.served.since, root=info.model_id, max_model_len=info.limits.max_sequence_tokens
    )
