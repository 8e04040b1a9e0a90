"""Ways of running requests with drafters that stay, are swapped, or are killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness.services import Services
from benchmarks.laws.case_requests import Requests
from draftwire import AsyncClient, DrafterNotFoundError
from tests.harness.services.service_process import ServiceProcess

SWAP_TOKENS = 5


class Swapping:
    """Two or more drafters in turn: after every 5 tokens of a request the next one takes over."""

    events = "swaps"

    def __init__(self, client: AsyncClient, drafters: dict[str, str]):
        """drafters: addresses by name."""
        self._client = client
        self._drafters = drafters

    async def __call__(self, requests: Requests) -> None:
        """Runs the requests of a case. The drafters are attached before it and detached after it."""
        for name, address in self._drafters.items():
            await self._client.drafters.attach(address, name)
        await requests.run_groups(lambda indices: self._run_group(requests, indices))
        await detach_all(self._client)

    async def _run_group(self, requests: Requests, indices: range) -> None:
        changed = asyncio.Event()
        counts = dict.fromkeys(indices, 0)

        def counter(index: int) -> Callable[[int], object]:
            def count(tokens: int) -> None:
                counts[index] += tokens
                changed.set()

            return count

        async def run_all() -> None:
            async with asyncio.TaskGroup() as tasks:
                for index in indices:
                    tasks.create_task(requests.run(index, counter(index)))

        running = asyncio.create_task(run_all())
        running.add_done_callback(lambda _: changed.set())
        due = SWAP_TOKENS
        while not running.done():
            await changed.wait()
            changed.clear()
            if max(counts.values()) >= due and not running.done():
                due = max(counts.values()) + SWAP_TOKENS
                requests.events += await self._swap()
        await running

    async def _swap(self) -> bool:
        """Swaps the drafters; returns whether a running request moved."""
        listed = await self._client.drafters.list()
        old = next((d for d in listed if d.sequences), listed[0]).name
        names = list(self._drafters)
        new = names[(names.index(old) + 1) % len(names)]
        swap = await self._client.drafters.swap(old, new)
        await self._client.drafters.attach(self._drafters[old], old)
        return swap.moved_sequences > 0


class Killing:
    """A drafter that is killed in the middle of a request, or of 16, and restarted for the next."""

    events = "kills"

    def __init__(self, client: AsyncClient, services: Services, draft: Path, *flags: str):
        """draft: the model of the drafters. flags: more of their command line."""
        self._client = client
        self._services = services
        self._draft = draft
        self._flags = flags
        self._spares: list[ServiceProcess] = []
        self._count = 0

    def prepare(self) -> None:
        """Starts some drafters ahead, so that the next request does not have to wait for one."""
        while len(self._spares) < 3:
            self._spares.append(self._services.forked_drafter(self._draft, *self._flags))

    async def __call__(self, requests: Requests) -> None:
        """Runs the requests of a case."""
        await requests.run_groups(lambda indices: self._run_group(requests, indices))

    async def _run_group(self, requests: Requests, indices: range) -> None:
        self.prepare()
        drafter = self._spares.pop(0)
        address = await asyncio.to_thread(lambda: drafter.address)
        self._count += 1
        name = f"mortal-{self._count}"
        await self._client.drafters.attach(address, name)
        if await requests.run_group(indices, drafter.kill):
            requests.events += 1
        else:
            drafter.kill()
        await self._client.drafters.detach(name)


class Drafting:
    """One drafter throughout, or none."""

    events = ""

    def __init__(self, client: AsyncClient, address: str | None):
        self._client = client
        self._address = address

    async def __call__(self, requests: Requests) -> None:
        """Runs the requests of a case."""
        if self._address is not None:
            await self._client.drafters.attach(self._address)
        await requests.run_all()
        await detach_all(self._client)


async def detach_all(client: AsyncClient) -> None:
    """Detaches all drafters of the verifier."""
    for drafter in await client.drafters.list():
        try:
            await client.drafters.detach(drafter.name)
        except DrafterNotFoundError:
            continue
