"""Commands that signals interrupt, which then clean up as they do at their end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from draftwire._async.client import AsyncClient
from draftwire._types.drafter import Drafter
from draftwire.cli.failure import Failure
from draftwire.errors import DrafterNotFoundError, DraftwireError

T = TypeVar("T")

_LEASE_SECONDS = 20.0
"""Time after which a verifier detaches the drafters of a command that was killed."""

Attach = Callable[[str, str], Awaitable[Drafter]]
"""The type of ``attach(address, option)``, which attaches a drafter; a `Failure` names the option."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine like `asyncio.run`. SIGTERM cancels it as Ctrl-C does, so that it detaches what it attached.

    Raises:
        KeyboardInterrupt: a signal ended it.
    """

    async def interruptible() -> T:
        task = asyncio.current_task()
        assert task is not None
        with contextlib.suppress(NotImplementedError):  # on Windows, which has no SIGTERM to handle
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await main

    before = signal.getsignal(signal.SIGTERM)
    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGTERM, before)  # the loop leaves the default one


@asynccontextmanager
async def leasing(client: AsyncClient, names: Sequence[str]) -> AsyncIterator[float]:
    """Renews the leases of drafters within the block, so that the verifier detaches them if this process is killed.

    names: of those attached so far; may change. Yields the lease, in seconds, that they are to be attached with.
    """

    async def renew() -> None:
        while True:
            await asyncio.sleep(_LEASE_SECONDS / 4)
            for name in list(names):
                # Not attached any more, or for a moment out of reach, which the command itself will notice.
                with contextlib.suppress(DraftwireError):
                    await client.drafters.renew(name, _LEASE_SECONDS, timeout=_LEASE_SECONDS / 4)

    renewing = asyncio.create_task(renew(), name="renewal of leases")
    try:
        yield _LEASE_SECONDS
    finally:
        renewing.cancel()
        await asyncio.wait({renewing})
        if not renewing.cancelled():  # it has failed, which is a mistake of ours
            renewing.result()


@asynccontextmanager
async def attaching(client: AsyncClient) -> AsyncIterator[Attach]:
    """Yields a function that attaches drafters, which are detached at the end of the block. They have a lease, so that
    the verifier detaches them if this process is killed."""
    attached: list[str] = []
    async with leasing(client, attached) as lease:

        async def attach(address: str, option: str) -> Drafter:
            attached.append(address)  # before the answer, which a signal may cut off
            try:
                return await client.drafters.attach(address, lease=lease)
            except DraftwireError as error:
                raise Failure(f"{option}: {error}") from error

        try:
            yield attach
        finally:
            for name in attached:
                with contextlib.suppress(DrafterNotFoundError):
                    await client.drafters.detach(name)
