"""Drafters and verifiers that are killed when the requests of a group have half of their tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from draftwire import AsyncClient, Speculation
from draftwire_tools.check.comparison import Run, generate
from draftwire_tools.check.drafters import drafting
from draftwire_tools.check.request import CheckRequest
from tests.harness.services.service_process import ServiceProcess

_REQUEST_SECONDS = 300.0


class KilledDrafters:
    """A drafter for each group, which is killed in its middle."""

    def __init__(self, client: AsyncClient, start: Callable[[], ServiceProcess], spares: int = 2) -> None:
        """start: starts a drafter. spares: drafters to start ahead, so that the next group need not wait for one."""
        self._client = client
        self._start = start
        self._started: list[ServiceProcess] = []
        self._ahead = 1 + spares
        self.kills = 0
        """Drafters that were killed while a request ran."""

    @asynccontextmanager
    async def around(self, requests: Sequence[CheckRequest]) -> AsyncIterator[Run]:
        """Attaches the drafter of a group."""
        while len(self._started) < self._ahead:
            self._started.append(self._start())
        drafter = self._started.pop(0)
        address = (await asyncio.to_thread(drafter.serving)).address
        await self._client.drafters.attach(address)

        def kill() -> None:
            drafter.kill()
            self.kills += 1

        yield partial(generate, self._client, speculation=drafting([address]), each=_halfway(requests, kill))
        drafter.kill()  # requests may have ended early
        await self._client.drafters.detach(address)


class KilledVerifiers:
    """Two verifiers, of which the one in use is killed in the middle of each group and then replaced."""

    def __init__(self, start: Callable[[], ServiceProcess], drafter: str) -> None:
        """start: starts a verifier. drafter: address of the drafter that each of them uses."""
        self._start = start
        self._drafter = drafter
        self._running: list[ServiceProcess] = []

    @asynccontextmanager
    async def around(self, requests: Sequence[CheckRequest]) -> AsyncIterator[Run]:
        """Connects a client to the two verifiers of a group."""
        while len(self._running) < 2:
            self._running.append(self._start())
        addresses = [(await asyncio.to_thread(service.serving)).address for service in self._running]
        for address in addresses:
            async with AsyncClient(address, timeout=_REQUEST_SECONDS) as one:
                if not await one.drafters.list():
                    await one.drafters.attach(self._drafter)
        async with AsyncClient(addresses, timeout=_REQUEST_SECONDS) as client:

            def kill_the_busiest() -> None:
                used = [verifier.in_flight for verifier in client.verifiers]
                self._running.pop(used.index(max(used))).kill()

            each = _halfway(requests, kill_the_busiest)
            yield partial(generate, client, speculation=Speculation(planning="always"), each=each)

    def stop(self) -> None:
        """Stops the verifiers that still run."""
        while self._running:
            self._running.pop().stop()


def _halfway(requests: Sequence[CheckRequest], act: Callable[[], None]) -> Callable[[int], Awaitable[None]]:
    """Returns a counter of tokens that acts once, when the requests together have half of theirs."""
    left = sum(request.max_tokens for request in requests) // 2

    async def count(tokens: int) -> None:
        nonlocal left
        if 0 < left <= tokens:
            act()
        left -= tokens

    return count
