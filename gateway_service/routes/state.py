"""The parts of a running gateway that its routes use."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import Request

from gateway_service.choices.responder import Responder
from gateway_service.http.errors import ErrorResponse
from gateway_service.keys.grant import Grant
from gateway_service.models.models import Models, NamedModel
from gateway_service.models.served_model import ServedModel
from gateway_service.observability.metrics import Metrics
from gateway_service.openai.response_parts import Head
from gateway_service.settings import GatewaySettings


@dataclass(frozen=True, slots=True)
class State:
    """The parts of a running gateway."""

    settings: GatewaySettings
    models: Models
    responder: Responder
    metrics: Metrics
    health_checks: list[asyncio.Task[None]] = field(default_factory=list)
    """The running health check, if there is one: all who ask meanwhile share it, since asking needs no key."""

    async def model(self, request: Request, name: str | None) -> NamedModel:
        """Returns the model of that name, or the first one; its names are recorded in the request.

        Raises:
            GatewayError: there is no such model, or the key does not permit it.
        """
        grant: Grant | None = request.state.grant
        found = await self.models.find(name, None if grant is None else grant.key)
        request.state.model = (found.name, found.first_name)
        if grant is not None:
            grant.check_model(*request.state.model)
        return found


async def head_of(prefix: str, request: Request, target: ServedModel) -> Head:
    """Returns the fields that begin the response to a request, after `State.model`; the fingerprint is recorded in the
    request."""
    request.state.fingerprint = await target.fingerprint()
    return Head(prefix, request.state.request_id, request.state.model[0], request.state.fingerprint)


def _state(request: Request) -> State:
    state: State = request.app.state.gateway
    return state


GatewayState = Annotated[State, Depends(_state)]
"""Type of a route's parameter that holds the gateway's parts."""


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Returns the error responses of a route, for the API's description."""
    return {status: {"model": ErrorResponse} for status in statuses}
