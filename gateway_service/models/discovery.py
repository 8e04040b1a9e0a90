"""The models of verifiers that are given by their addresses alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Self

from draftwire import AsyncClient, DraftwireError
from draftwire._types.verifier import parse_verifiers
from draftwire_core.runtime.process.logs import get_logger
from gateway_service.models.model_file import ModelEntry, TargetEntry

log = get_logger(__name__)

_ASK_EVERY_SECONDS = 10.0
_ASK_SECONDS = 5.0


class Discovery:
    """Returns the models to serve. To be used as `async with`, on one event loop.

    A model without a name, which has several verifiers, is divided by what they report: those with the same name and
    fingerprint are one target, and targets of one name share its requests by their verifiers' weights. While all that
    have answered have the same target, it stays undivided, with those that have not.
    """

    def __init__(
        self, given: Callable[[], tuple[ModelEntry, ...]], connect: Callable[[tuple[str, ...]], AsyncClient]
    ) -> None:
        """given: returns the models of the settings. connect: returns a new client of these verifiers."""
        self._given = given
        self._connect = connect
        self._clients: dict[str, AsyncClient] = {}
        """Clients of the verifiers that are asked, by these as they were given."""
        self._known: dict[str, tuple[str, str]] = {}
        """The name and the fingerprint that verifiers have last reported."""
        self._found: tuple[ModelEntry, ...] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Asks the verifiers once, and then again and again."""
        [first, *others] = self._given()
        if not others and not first.names and len(first.targets[0].verifiers) > 1:
            for verifier in first.targets[0].verifiers:
                self._clients[verifier] = await self._opened.enter_async_context(self._connect((verifier,)))
            await self._ask()
            self._asking = asyncio.create_task(self._ask_again())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops asking, and closes the clients."""
        if self._asking is not None:
            self._asking.cancel()
            with suppress(asyncio.CancelledError):
                await self._asking
        await self._opened.aclose()

    def __call__(self) -> tuple[ModelEntry, ...]:
        """Returns the models. The object changes only with them."""
        return self._given() if self._found is None else self._found

    async def _ask_again(self) -> None:
        while True:
            await asyncio.sleep(_ASK_EVERY_SECONDS)
            await self._ask()

    async def _ask(self) -> None:
        answers = await asyncio.gather(*map(_reported, self._clients.values()))
        there = {verifier: told for verifier, told in zip(self._clients, answers, strict=True) if told is not None}
        self._known |= there
        found = self._divided(frozenset(there)) if len(set(self._known.values())) > 1 else None
        if found != self._found:
            self._found = found
            log.info("models discovered", models=[name for entry in found or () for name in entry.names])

    def _divided(self, there: frozenset[str]) -> tuple[ModelEntry, ...]:
        """Returns the known models. there: the verifiers that answer now; a target without any gets no requests unless
        its name has no other."""
        by_name: dict[str, dict[str, list[str]]] = {}
        for verifier in self._clients:
            if verifier in self._known:
                name, fingerprint = self._known[verifier]
                by_name.setdefault(name, {}).setdefault(fingerprint, []).append(verifier)
        entries = []
        for name, by_fingerprint in by_name.items():
            groups = [tuple(verifiers) for verifiers in by_fingerprint.values()]
            shares = [_weight(there.intersection(verifiers)) for verifiers in groups]
            if len(groups) == 1 or not any(shares):
                shares = [1.0] * len(groups)
            entries.append(ModelEntry((name,), tuple(map(TargetEntry, groups, shares))))
        return tuple(entries)


async def _reported(client: AsyncClient) -> tuple[str, str] | None:
    """Returns the name and the fingerprint of a verifier's model; None if it does not answer."""
    try:
        info = await client.model_info(timeout=_ASK_SECONDS)
    except DraftwireError:
        return None
    return info.model_id, info.fingerprint


def _weight(verifiers: frozenset[str]) -> float:
    return float(sum(each.weight for each in parse_verifiers(tuple(verifiers)))) if verifiers else 0.0
