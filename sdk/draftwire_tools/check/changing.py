"""Drafters that change while a request runs: swaps, and detaching and attaching again."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from draftwire._async.client import AsyncClient
from draftwire._types.drafter import Drafter
from draftwire._types.speculation import Speculation, SpeculationStats
from draftwire.errors import BusyError, DrafterNotFoundError
from draftwire_tools.check.output import Output
from draftwire_tools.check.request import CheckRequest

_EVERY = 5
"""Tokens after which the drafters change."""
_LABEL = "draftwire-check"


class ChangingDrafters:
    """Copies of one or two drafters under names of their own, so that requests of others keep their drafters."""

    def __init__(self, client: AsyncClient, addresses: Sequence[str]) -> None:
        """addresses: of one drafter, or of the two that take turns."""
        mark = secrets.token_hex(4)
        self.events = 0
        """Swaps, or detachments, that took place while a request ran."""
        self._client = client
        self._copies = {f"check-{mark}-{number}": address for number, address in enumerate(addresses[:2])}
        self._labels = {_LABEL: mark}

    @property
    def speculation(self) -> Speculation:
        """Options of a request that only these drafters draft for."""
        return Speculation(labels=self._labels, planning="always")

    async def attach(self) -> None:
        """Attaches what is not attached.

        Raises:
            DraftwireError: a drafter cannot be attached.
        """
        for name, address in self._copies.items():
            await self._client.drafters.attach(address, name, self._labels)

    async def detach(self) -> None:
        """Detaches all of them."""
        for name in self._copies:
            try:
                await self._client.drafters.detach(name)
            except DrafterNotFoundError:
                continue

    async def swapping(self, request: CheckRequest) -> tuple[Output, SpeculationStats]:
        """Runs a request whose drafter is swapped for the other one after every few tokens."""
        return await self._run(request, self._swap)

    async def leaving(self, request: CheckRequest) -> tuple[Output, SpeculationStats]:
        """Runs a request whose drafters leave and come back after every few tokens."""
        await self.attach()
        return await self._run(request, self._leave)

    async def _swap(self, turn: int) -> None:
        listed = [each for each in await self._client.drafters.list() if each.name in self._copies]
        old = next((each.name for each in listed if each.sequences), next(iter(self._copies)))
        new = next(name for name in self._copies if name != old)
        try:
            swap = await self._client.drafters.swap(old, new)
        except (BusyError, DrafterNotFoundError):  # another request of the case is swapping them
            return
        self.events += swap.moved_sequences > 0
        await self._client.drafters.attach(self._copies[old], old, self._labels)

    async def _leave(self, turn: int) -> None:
        if turn % 2:
            await self.attach()
        else:
            await self.detach()
            self.events += 1

    async def _run(
        self, request: CheckRequest, change: Callable[[int], Awaitable[None]]
    ) -> tuple[Output, SpeculationStats]:
        tokens, turn = 0, 0
        async with self._client.stream(request.prompt.text, **request.options(self.speculation)) as stream:
            async for chunk in stream:
                tokens += len(chunk.token_ids)
                if tokens >= (turn + 1) * _EVERY:
                    await change(turn)
                    turn += 1
        return Output.of(stream.result), stream.result.speculation


@asynccontextmanager
async def changing(client: AsyncClient, drafters: Sequence[Drafter]) -> AsyncIterator[ChangingDrafters]:
    """Yields attached copies of the first two drafters; next to a single one, of a drafter that needs no model.

    Raises:
        DraftwireError: a drafter cannot be attached again, for example because only it can reach the verifier.
    """
    addresses = list(dict.fromkeys(drafter.address for drafter in drafters))
    spare = "local:ngram" if addresses[0] != "local:ngram" else "local:suffix"
    made = ChangingDrafters(client, [*addresses[:2], spare])
    try:
        await made.attach()
        yield made
    finally:
        await made.detach()
