"""The state of the verifier and its pool, sent to open pages as it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from draftwire import AsyncClient, DeadlineExceededError, ShuttingDownError
from gateway_service.console.api_errors import ApiError
from gateway_service.console.descriptions import describe_drafter, describe_rollout, describe_verifier
from gateway_service.console.event_stream import Event, Events

MOST_PAGES = 64
"""Most pages that follow the state at once."""
PERIOD = 2.0
"""Seconds between two states while the pool is unchanged, because counts and times still change."""

PATIENCE = 15.0
"""Seconds within which a verifier has to answer; otherwise the pages receive an error."""


class StateEvents:
    """Streams states to a limited number of pages."""

    def __init__(self, client: Callable[[], AsyncClient], ending: asyncio.Event) -> None:
        """client: returns the current client, which each page keeps while it follows. ending: set when the gateway
        begins to shut down, which pages would hold up that follow without end."""
        self._client = client
        self._ending = ending
        self._pages = 0

    def follow(self) -> Events:
        """Returns an endless stream of states: the current one, and one after each change of the pool and each period.

        Raises:
            ApiError: too many pages follow already.
        """
        if self._pages >= MOST_PAGES:
            raise ApiError(429, f"{MOST_PAGES} pages follow the pool already")
        return self._states()

    async def _states(self) -> Events:
        self._pages += 1
        try:
            client = self._client()
            async with client.drafters.watch() as changes:
                change = asyncio.ensure_future(anext(changes))  # the first one comes immediately
                ending = asyncio.ensure_future(self._ending.wait())
                try:
                    while True:
                        awaited = {change, ending}
                        done, _ = await asyncio.wait(awaited, timeout=PERIOD, return_when=asyncio.FIRST_COMPLETED)
                        if ending in done:
                            raise ShuttingDownError("the gateway is shutting down")
                        if done:
                            change.result()
                            change = asyncio.ensure_future(anext(changes))
                        yield await self._state(client)
                finally:
                    change.cancel()
                    ending.cancel()
                    await asyncio.wait({change, ending})
        finally:
            self._pages -= 1

    async def _state(self, client: AsyncClient) -> Event:
        try:
            async with asyncio.timeout(PATIENCE):
                drafters, rollouts, info = await asyncio.gather(
                    client.drafters.list(), client.drafters.rollouts(), client.model_info()
                )
        except TimeoutError as error:
            raise DeadlineExceededError(f"the verifier sent nothing for {PATIENCE:g} seconds") from error
        return "state", {
            "verifier": describe_verifier(info),
            "drafters": [describe_drafter(drafter) for drafter in drafters],
            "rollouts": [describe_rollout(rollout) for rollout in rollouts],
        }
