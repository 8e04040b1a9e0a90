"""The state of the verifier and its pool, as it changes, for the pages that are open."""

from __future__ import annotations

import asyncio

from draftwire import AsyncClient, DeadlineExceededError
from gateway.console.api_errors import ApiError
from gateway.console.descriptions import describe_drafter, describe_rollout, describe_verifier
from gateway.console.event_stream import Event, Events

MOST_PAGES = 64
"""Pages that follow at once."""
PERIOD = 2.0
"""Seconds between two states while the pool stays as it is: its counts and times do not."""

PATIENCE = 15.0
"""Seconds in which a verifier has to answer; the pages are told of one that does not."""


class StateEvents:
    """Hands out states to a bounded number of pages."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._pages = 0

    def follow(self) -> Events:
        """Return the present state, and one after each change of the pool and each period. Without end.

        Raises:
            ApiError: too many pages follow already.
        """
        if self._pages >= MOST_PAGES:
            raise ApiError(429, f"{MOST_PAGES} pages follow the pool already")
        return self._states()

    async def _states(self) -> Events:
        self._pages += 1
        try:
            async with self._client.drafters.watch() as changes:
                change = asyncio.ensure_future(anext(changes))  # the first one comes at once
                try:
                    while True:
                        done, _ = await asyncio.wait({change}, timeout=PERIOD)
                        if done:
                            change.result()
                            change = asyncio.ensure_future(anext(changes))
                        yield await self._state()
                finally:
                    change.cancel()
                    await asyncio.wait({change})
        finally:
            self._pages -= 1

    async def _state(self) -> Event:
        try:
            async with asyncio.timeout(PATIENCE):
                drafters, rollouts, info = await asyncio.gather(
                    self._client.drafters.list(), self._client.drafters.rollouts(), self._client.model_info()
                )
        except TimeoutError as error:
            raise DeadlineExceededError(f"it has said nothing for {PATIENCE:g} seconds") from error
        return "state", {
            "verifier": describe_verifier(info),
            "drafters": [describe_drafter(drafter) for drafter in drafters],
            "rollouts": [describe_rollout(rollout) for rollout in rollouts],
        }
