"""The drafters of a check."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from draftwire._async.client import AsyncClient
from draftwire._types.drafter import Drafter
from draftwire._types.speculation import Planning, Speculation
from draftwire_tools.interruption import attaching

DEFAULT = ("local:ngram", "local:suffix")
"""Drafters that are attached for the check if none is."""
MOST = 16
"""Most drafters of one request."""
_NOBODY = {"draftwire-check": "nobody"}
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
