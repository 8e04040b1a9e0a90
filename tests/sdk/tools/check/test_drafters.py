"""Drafters that change during a check have leases, too, so that none stays attached if the check is killed."""

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest

from draftwire import AsyncClient
from draftwire.errors import BusyError, DrafterNotFoundError, UnsupportedDrafterError
from draftwire_tools import interruption
from draftwire_tools.check.drafters import changing
from tests.harness.waiting import PATIENCE


class Recorded:
    """The drafters of a client, which records what is asked of them."""

    def __init__(self) -> None:
        self.leases: dict[str, float | None] = {}
        """Those of the attached drafters, by name."""
        self.renewed: set[str] = set()
        self.all_renewed = asyncio.Event()
        self.refused = ""
        """An address that cannot be attached."""
        self.busy = ""
        """End of the name of a drafter that is being swapped."""

    async def attach(
        self, address: str, name: str, labels: Mapping[str, str] | None = None, *, lease: float | None = None
    ) -> None:
        if address == self.refused:
            raise UnsupportedDrafterError("it cannot be attached twice")
        self.leases[name] = lease

    async def renew(self, name: str, lease: float, *, timeout: float) -> None:
        if name not in self.leases:
            raise DrafterNotFoundError("it is not attached")
        self.renewed.add(name)
        if self.renewed == set(self.leases):
            self.all_renewed.set()

    async def detach(self, name: str) -> None:
        if self.busy and name.endswith(self.busy):
            raise BusyError("it is being swapped")
        if self.leases.pop(name, None) is None:
            raise DrafterNotFoundError("it is not attached")


class Recording:
    """A client with recorded drafters."""

    def __init__(self) -> None:
        self.drafters = Recorded()


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    monkeypatch.setattr(interruption, "_LEASE_SECONDS", 0.02)
    return Recording()


@pytest.mark.parametrize("refused", ["", "local:ngram"])
async def test_copies_have_leases_that_are_renewed(recording: Recording, refused: str) -> None:
    """Also those that take the place of a drafter that needs no model, where there is none."""
    recording.drafters.refused = refused
    async with asyncio.timeout(PATIENCE), changing(cast(AsyncClient, recording), ["host:1"]) as pool:
        assert set(recording.drafters.leases) == set(pool.names)
        assert set(recording.drafters.leases.values()) == {0.02}
        await pool.detach()
        await pool.attach()
        assert set(recording.drafters.leases.values()) == {0.02}
        await recording.drafters.all_renewed.wait()
    assert not recording.drafters.leases


async def test_an_interruption_in_a_swap_detaches_the_others(recording: Recording) -> None:
    with pytest.raises(asyncio.CancelledError):
        async with changing(cast(AsyncClient, recording), ["host:1", "host:2"]) as pool:
            recording.drafters.busy = "-0"
            raise asyncio.CancelledError
    assert list(recording.drafters.leases) == pool.names[:1], "which its lease ends"
