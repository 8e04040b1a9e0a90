"""``/v1/models``."""

from __future__ import annotations

import asyncio
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request

from draftwire import DraftwireError
from gateway_service.keys.grant import Grant
from gateway_service.models.models import NamedModel
from gateway_service.routes.state import GatewayState, errors

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


@router.get("/v1/models/", include_in_schema=False)  # otherwise the model without a name
@router.get("/v1/models", responses=errors(401, 500, 503, 504))
async def list_models(request: Request, state: GatewayState) -> ModelList:
    """Lists the names of the models that the key permits. A model whose verifiers cannot be asked is left out, unless
    that leaves none."""
    grant: Grant | None = request.state.grant
    models = [*await state.models.all(), *await state.models.adapted()]
    permitted = [each for each in models if grant is None or grant.key.permits(each.name, each.first_name)]
    cards = await asyncio.gather(*map(_card, permitted), return_exceptions=True)
    known = [card for card in cards if isinstance(card, ModelCard)]
    failures = [card for card in cards if isinstance(card, BaseException)]
    for failure in failures:
        if not known or not isinstance(failure, DraftwireError):
            raise failure
    return ModelList(data=known)


@router.get("/v1/models/{model:path}", responses=errors(400, 401, 403, 404, 500, 503, 504))
async def get_model(model: str, request: Request, state: GatewayState) -> ModelCard:
    """Returns a served model under one of its names."""
    return await _card(await state.model(request, model))


async def _card(model: NamedModel) -> ModelCard:
    target = model.described
    info = await target.info()
    most = info.limits.max_sequence_tokens
    return ModelCard(id=model.name, created=target.since, root=info.model_id, max_model_len=most)
