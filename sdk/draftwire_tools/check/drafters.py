"""The drafters of a check, and drafters that change while a request runs: swaps, detaching and attaching again."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from draftwire._async.client import AsyncClient
from draftwire._types.drafter import Drafter
from draftwire._types.speculation import Planning, Speculation, SpeculationStats
from draftwire.errors import BusyError, DrafterNotFoundError, UnsupportedDrafterError
from draftwire_tools.check.comparison import generate
from draftwire_tools.check.output import Output
from draftwire_tools.check.request import CheckRequest
from draftwire_tools.interruption import attaching, leasing

DEFAULT = ("local:ngram", "local:suffix")
"""Drafters that are attached for the check if none is."""
MOST = 16
"""Most drafters of one request."""
EVERY = 5
"""Tokens after which the drafters change."""
_LABEL = "draftwire-check"
_NOBODY = {_LABEL: "nobody"}
"""A label that no drafter has."""

PLAIN = Speculation(enabled=False)
"""Plain decoding."""
NOBODY = Speculation(labels=_NOBODY)
"""Speculation without a drafter."""


def drafting(names: Sequence[str], planning: Planning = "always") -> Speculation:
    """Returns the options of a request that all these drafters draft for."""
    return Speculation(drafters=list(names)[:MOST], planning=planning)


@asynccontextmanager
async def drafters(client: AsyncClient, wanted: Sequence[str]) -> AsyncIterator[list[Drafter]]:
    """Yields the drafters with these names; without names all that are attached.

    A name that is an address is attached now, and detached at the end unless it was attached before. If nothing is
    attached or named, drafters that need no model are attached.

    Raises:
        ValueError: a name is unknown to this verifier.
        Failure: a drafter could not be attached.
        DraftwireError: a call failed.
    """
    pool = {drafter.name: drafter for drafter in await client.drafters.list()}
    names = list(dict.fromkeys(wanted)) or list(pool) or list(DEFAULT)
    for name in names:
        if name not in pool and ":" not in name:
            raise ValueError(
                f"--drafter {name}: no drafter of this name is attached at {client.address}, only "
                f"{', '.join(pool) or 'none'}; an address, such as local:suffix, is attached for the check"
            )
    async with attaching(client) as attach:
        for name in names:
            if name not in pool:
                pool[name] = await attach(name, f"--drafter {name}")
        yield [pool[name] for name in names]


class ChangingDrafters:
    """Copies of drafters under names of their own, so that requests of others keep their drafters."""

    def __init__(self, client: AsyncClient, addresses: Sequence[str], lease: float) -> None:
        """addresses: of the drafters that take turns. lease: seconds that a copy stays attached unless it is
        renewed."""
        mark = secrets.token_hex(4)
        self.events = 0
        """Swaps, or detachments, that took place while a request ran."""
        self._client = client
        self._lease = lease
        self._copies = {f"check-{mark}-{number}": address for number, address in enumerate(addresses)}
        self._labels = {_LABEL: mark}

    @property
    def names(self) -> list[str]:
        """Names of the copies, attached or not."""
        return list(self._copies)

    @property
    def speculation(self) -> Speculation:
        """Options of a request that only these drafters draft for."""
        return Speculation(labels=self._labels, planning="always")

    async def attach(self) -> None:
        """Attaches what is not attached.

        Raises:
            DraftwireError: a drafter cannot be attached.
        """
        for name in self._copies:
            await self._attach(name)

    async def _attach(self, name: str) -> None:
        await self._client.drafters.attach(self._copies[name], name, self._labels, lease=self._lease)

    async def detach(self) -> None:
        """Detaches all of them. One that is being swapped, as after an interruption, stays until its lease ends."""
        for name in self._copies:
            with suppress(BusyError, DrafterNotFoundError):
                await self._client.drafters.detach(name)

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
        names = list(self._copies)
        new = names[(names.index(old) + 1) % len(names)]
        try:
            swap = await self._client.drafters.swap(old, new)
        except (BusyError, DrafterNotFoundError):  # another request of the case is swapping them
            return
        self.events += swap.moved_sequences > 0
        await self._attach(old)

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

        async def count(more: int) -> None:
            nonlocal tokens, turn
            tokens += more
            if tokens >= (turn + 1) * EVERY:
                await change(turn)
                turn += 1

        return await generate(self._client, request, speculation=self.speculation, each=count)


@asynccontextmanager
async def changing(client: AsyncClient, addresses: Sequence[str]) -> AsyncIterator[ChangingDrafters]:
    """Yields attached copies of drafters; next to a single one, of a drafter that needs no model, or a second copy if
    the pool has none of these. They have leases, as `attaching` gives them.

    Raises:
        DraftwireError: a drafter cannot be attached again, for example because only it can reach the verifier.
    """
    addresses = list(dict.fromkeys(addresses))
    spare = [each for each in DEFAULT if each not in addresses] if len(addresses) == 1 else []
    names: list[str] = []
    async with leasing(client, names) as lease:
        made = ChangingDrafters(client, [*addresses, *spare[:1]], lease)
        names += made.names
        try:
            try:
                await made.attach()
            except UnsupportedDrafterError:
                await made.detach()
                made = ChangingDrafters(client, addresses * 2, lease)
                names += made.names
                await made.attach()
            yield made
        finally:
            await made.detach()
