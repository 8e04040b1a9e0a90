"""The parts of a running gateway that its routes use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import Request

from draftwire import AsyncClient
from gateway_service.choices.responder import Responder
from gateway_service.http.errors import ErrorResponse
from gateway_service.keys.grant import Grant
from gateway_service.observability.metrics import Metrics
from gateway_service.openai.response_parts import Head
from gateway_service.openai.served_model import ServedModel
from gateway_service.settings import GatewaySettings


@dataclass(frozen=True, slots=True)
class State:
    """The parts of a running gateway."""

    settings: GatewaySettings
    client: AsyncClient
    served: ServedModel
    responder: Responder
    metrics: Metrics

    async def head(self, prefix: str, request: Request, model: str | None) -> Head:
        """Returns the fields that begin the response to a request, after checking the model's name.

        Raises:
            GatewayError: there is no such model, or the key does not permit it.
        """
        name = request.state.model = await self.model(request, model)
        return Head(prefix, request.state.request_id, name, await self.served.fingerprint())

    async def model(self, request: Request, model: str | None) -> str:
        """Returns the name of the model of a request.

        Raises:
            GatewayError: there is no such model, or the key does not permit it.
        """
        grant: Grant | None = request.state.grant
        if model is None and grant is not None:
            permitted = [name for name in await self.served.names() if grant.key.permits(name)]
            model = next(iter(permitted), None)  # otherwise the first one, which is refused
        name = await self.served.check(model)
        if grant is not None:
            grant.check_model(name)
        return name


def _state(request: Request) -> State:
    state: State = request.app.state.gateway
    return state


GatewayState = Annotated[State, Depends(_state)]
"""Type of a route's parameter that holds the gateway's parts."""


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Returns the error responses of a route, for the API's description."""
    return {status: {"model": ErrorResponse} for status in statuses}
