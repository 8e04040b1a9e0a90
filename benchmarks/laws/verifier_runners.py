"""Ways of running requests at verifiers that are short of memory, that know the prompts, or that are killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from benchmarks.laws.case_requests import Requests
from benchmarks.laws.drafter_runners import Drafting
from draftwire import AsyncClient
from tests.harness.services.service_process import ServiceProcess


class Preempting:
    """A verifier with too few KV slots for all requests: sequences lose theirs to others, and are computed again."""

    events = "preemptions"

    def __init__(self, client: AsyncClient, drafter: str):
        """client: of that verifier. drafter: address of the drafter that it uses."""
        self._client = client
        self._drafting = Drafting(client, drafter)

    async def __call__(self, requests: Requests) -> None:
        """Runs the requests of a case."""
        requests.client = self._client
        before = await self._preemptions()
        await self._drafting(requests)
        requests.events += await self._preemptions() - before

    async def _preemptions(self) -> int:
        return (await self._client.model_info()).engine.preemptions


class FromCache:
    """Requests whose prompts the verifier has read before."""

    events = "cache hits"

    def __init__(self, client: AsyncClient, drafter: str):
        """drafter: address of the drafter that the verifier uses."""
        self._drafting = Drafting(client, drafter)

    async def __call__(self, requests: Requests) -> None:
        """Runs the requests of a case twice; the second time counts."""
        for _ in range(2):
            await self._drafting(requests)
        requests.events += sum(each.usage.cached_tokens > 0 for each in requests.generations.values())


class FailingOver:
    """Two verifiers, of which the one in use is killed in the middle of a request, or of 16, and started again."""

    events = "kills of verifiers"

    def __init__(self, start: Callable[[], ServiceProcess], drafter: str):
        """start: starts a verifier. drafter: address of the drafter that each of them uses."""
        self._start = start
        self._drafter = drafter
        self._running: list[ServiceProcess] = []

    async def __call__(self, requests: Requests) -> None:
        """Runs the requests of a case."""
        try:
            await requests.run_groups(lambda indices: self._run_group(requests, indices))
        finally:
            while self._running:
                await asyncio.to_thread(self._running.pop().stop)

    async def _run_group(self, requests: Requests, indices: range) -> None:
        while len(self._running) < 2:
            self._running.append(self._start())
        services = tuple(self._running)
        addresses = [await asyncio.to_thread(lambda s=service: s.address) for service in services]
        for address in addresses:
            async with AsyncClient(address, timeout=120.0) as one:
                if not await one.drafters.list():
                    await one.drafters.attach(self._drafter)

        def kill_the_busiest() -> None:
            used = [verifier.in_flight for verifier in requests.client.verifiers]
            self._running.pop(used.index(max(used))).kill()

        async with AsyncClient(addresses, timeout=300.0) as requests.client:
            await requests.run_group(indices, kill_the_busiest)
            requests.events += any(requests.generations[index].resumes for index in indices)
