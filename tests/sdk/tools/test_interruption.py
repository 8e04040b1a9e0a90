"""What a command attaches has a lease, which it renews, so that nothing stays attached if it is killed."""

import asyncio
from typing import cast

import pytest

from draftwire import AsyncClient
from draftwire.errors import DrafterNotFoundError
from draftwire_tools import interruption
from draftwire_tools.interruption import attaching
from tests.harness.stand_ins.fake_verifier import FakeVerifier
from tests.harness.waiting import PATIENCE


class Recorded:
    """The drafters of a client, which records what is asked of them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.renewed = asyncio.Event()
        self.failure: Exception = DrafterNotFoundError("swapped out, for example")

    async def attach(self, address: str, *, lease: float) -> str:
        self.calls.append(("attach", address, f"{lease:g}"))
        return address

    async def renew(self, name: str, lease: float, *, timeout: float) -> None:
        assert timeout < lease
        self.calls.append(("renew", name, f"{lease:g}"))
        if self.calls.count(("renew", name, f"{lease:g}")) > 1:
            self.renewed.set()
        raise self.failure

    async def detach(self, name: str) -> None:
        self.calls.append(("detach", name))


class Recording:
    """A client with recorded drafters."""

    def __init__(self) -> None:
        self.drafters = Recorded()


async def test_leases_are_renewed_until_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruption, "_LEASE_SECONDS", 0.02)
    client = Recording()
    async with asyncio.timeout(PATIENCE), attaching(cast(AsyncClient, client)) as attach:
        await attach("local:ngram", "--method")
        await client.drafters.renewed.wait()
    calls = client.drafters.calls
    assert calls[0] == ("attach", "local:ngram", "0.02")
    assert set(calls[1:-1]) == {("renew", "local:ngram", "0.02")}
    assert calls[-1] == ("detach", "local:ngram")
    assert "renewal of leases" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_a_mistake_in_renewing_is_told_after_detaching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruption, "_LEASE_SECONDS", 0.02)
    client = Recording()
    client.drafters.failure = ZeroDivisionError("of ours")

    async def use() -> None:
        async with attaching(cast(AsyncClient, client)) as attach:
            await attach("local:ngram", "--method")
            renewing = next(task for task in asyncio.all_tasks() if task.get_name() == "renewal of leases")
            await asyncio.wait({renewing})

    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ZeroDivisionError, match="of ours"):
            await use()
    assert client.drafters.calls[-1] == ("detach", "local:ngram")


async def test_the_lease_is_on_the_wire(verifier: FakeVerifier) -> None:
    async with AsyncClient(verifier.address, timeout=PATIENCE) as client:
        await client.drafters.attach("local:ngram", "mine", lease=2.5)
        await client.drafters.renew("mine", 7)
        await client.drafters.attach("local:ngram", "mine")
    first, second, third = verifier.attachments
    assert (first.address, first.name, first.renewal) == ("local:ngram", "mine", False)
    assert first.lease.ToMilliseconds() == 2500
    assert (second.name, second.lease.seconds, second.renewal) == ("mine", 7, True)
    assert not third.HasField("lease")
