"""Changes to the drafter pool, as the page requests them."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from draftwire import AsyncDrafters
from gateway_service.console.descriptions import describe_drafter, describe_rollout
from gateway_service.console.forms import (
    AttachForm,
    DetachForm,
    FinishRolloutForm,
    StartRolloutForm,
    SwapForm,
    read_form,
)

PATIENCE = 60.0
"""Seconds that a change may take; after that it continues without its caller."""


class PoolApi:
    """The endpoints for changes, each of which answers when its change is done."""

    def __init__(self, drafters: Callable[[], AsyncDrafters]) -> None:
        """drafters: returns those of the current verifier."""
        self._drafters = drafters

    async def attach(self, request: Request) -> Response:
        """Attaches a drafter and returns it."""
        form = await read_form(request, AttachForm)
        drafter = await self._drafters().attach(form.address, form.name, timeout=PATIENCE)
        return JSONResponse(describe_drafter(drafter))

    async def detach(self, request: Request) -> Response:
        """Detaches a drafter and returns its last state."""
        form = await read_form(request, DetachForm)
        return JSONResponse(describe_drafter(await self._drafters().detach(form.name, timeout=PATIENCE)))

    async def swap(self, request: Request) -> Response:
        """Replaces a drafter by another; returns the new one and the number of sequences moved."""
        form = await read_form(request, SwapForm)
        swap = await self._drafters().swap(form.old, form.new, timeout=PATIENCE)
        return JSONResponse({"drafter": describe_drafter(swap.drafter), "moved_sequences": swap.moved_sequences})

    async def start_rollout(self, request: Request) -> Response:
        """Gives a drafter a share of another's sequences, or changes the share; returns the rollout."""
        form = await read_form(request, StartRolloutForm)
        rollout = await self._drafters().rollout(form.old, form.new, form.share, timeout=PATIENCE)
        return JSONResponse(describe_rollout(rollout))

    async def finish_rollout(self, request: Request) -> Response:
        """Promotes or withdraws the new drafter of a rollout; returns the rollout."""
        form = await read_form(request, FinishRolloutForm)
        drafters = self._drafters()
        finish = drafters.promote if form.promote else drafters.withdraw
        return JSONResponse(describe_rollout(await finish(form.new, timeout=PATIENCE)))
