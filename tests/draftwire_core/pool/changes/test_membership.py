"""Attachments that fail, alone and among other changes of the pool."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from draftwire.v1 import drafter_pool_service_pb2 as pb
from draftwire_core.pool.drafter import drafter_stream
from draftwire_core.pool.servicer import DrafterPoolServicer
from draftwire_core.runtime.errors import ServiceError, at_capacity
from tests.harness.services.in_process_verifier import InProcessVerifier
from tests.harness.stand_ins.scripted_drafter import ScriptedDrafter, hello

LEASE = Duration(seconds=1000)


@pytest.fixture
def pool(verifier: InProcessVerifier) -> DrafterPoolServicer:
    return DrafterPoolServicer(verifier.pool)


class Door:
    """A drafter that says nothing until it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.knocked = asyncio.Event()

    async def converse(self, stream: Any) -> None:
        self.knocked.set()
        await self.opened.wait()
        await ScriptedDrafter().converse(stream)


@pytest.fixture
async def door(verifier: InProcessVerifier) -> Door:
    """The drafter at slow:1."""
    door = Door()
    verifier.network.listen("slow:1", door.converse)
    return door


async def attaching(pool: DrafterPoolServicer, door: Door, **fields: Any) -> asyncio.Task[Any]:
    """Begins to attach the drafter at slow:1."""
    call = asyncio.create_task(pool.AttachDrafter(pb.AttachDrafterRequest(address="slow:1", **fields), None))
    await door.knocked.wait()
    await asyncio.sleep(0)
    return call


class TestTwoCallsThatAttachOneDrafter:
    async def test_one_that_is_cancelled_leaves_it_to_the_other(
        self, verifier: InProcessVerifier, pool: DrafterPoolServicer, door: Door
    ) -> None:
        first, second = await attaching(pool, door), await attaching(pool, door, lease=LEASE)
        first.cancel()
        await asyncio.wait({first})
        door.opened.set()
        assert (await second).drafter.state == pb.DrafterState.DRAFTER_STATE_READY
        assert verifier.pool.roster.named("slow:1").given

    async def test_the_last_to_fail_takes_it_back(
        self, verifier: InProcessVerifier, pool: DrafterPoolServicer, door: Door
    ) -> None:
        calls = [await attaching(pool, door, lease=LEASE) for _ in range(3)]
        for call in calls:
            assert verifier.state("slow:1") is not None
            call.cancel()
            await asyncio.wait({call})
        assert verifier.state("slow:1") is None
        assert "slow:1" not in verifier.pool.membership._leases


class TestAChangeMeanwhile:
    async def test_a_drafter_that_is_detached_ends_the_call(
        self, verifier: InProcessVerifier, pool: DrafterPoolServicer, door: Door
    ) -> None:
        call = await attaching(pool, door)
        await pool.DetachDrafter(pb.DetachDrafterRequest(name="slow:1"), None)
        with pytest.raises(ServiceError, match="slow:1 is not ready: it was detached meanwhile") as caught:
            await call
        assert caught.value.reason_name == "DRAFTER_UNREACHABLE"

    async def test_another_drafter_of_the_name_keeps_its_lease(
        self, verifier: InProcessVerifier, pool: DrafterPoolServicer, door: Door
    ) -> None:
        first = await attaching(pool, door, name="mine")
        await pool.DetachDrafter(pb.DetachDrafterRequest(name="mine"), None)
        door.opened.set()
        second = await attaching(pool, door, name="mine", lease=LEASE)
        with pytest.raises(ServiceError, match="detached meanwhile"):
            await first
        await second
        assert "mine" in verifier.pool.membership._leases

    async def test_a_lease_that_ends_at_once_ends_the_call(
        self, verifier: InProcessVerifier, pool: DrafterPoolServicer, door: Door
    ) -> None:
        call = await attaching(pool, door, lease=Duration(nanos=1))
        with pytest.raises(ServiceError, match="detached meanwhile"):
            await call
        assert verifier.state("slow:1") is None


ADDRESSES = ("refused:1", "good:1", "silent:1", "closing:1", "failing:1", "late:1")
NAMES = ("", "a", "b")


class Play:
    """Random calls to a pool at random times, of drafters that fail in every way."""

    def __init__(self, verifier: InProcessVerifier, pool: DrafterPoolServicer, seed: int) -> None:
        self.verifier = verifier
        self.pool = pool
        self.random = random.Random(seed)
        self.ends: set[str] = set()
        """How calls ended: names of reasons, of exceptions, and OK."""
        for kind, handler in self._handlers().items():
            verifier.network.listen(f"{kind}:1", handler)

    def _handlers(self) -> dict[str, Callable[[Any], Awaitable[None]]]:
        async def silent(stream: Any) -> None:
            await asyncio.Event().wait()

        async def closing(stream: Any) -> None:
            await self._pause()

        async def failing(stream: Any) -> None:
            await stream.read()
            await self._pause()
            if self.random.random() < 0.5:
                await stream.write(hello())
                await self._pause()
            raise at_capacity("full", self.random.random())

        async def late(stream: Any) -> None:
            await self._pause()
            await ScriptedDrafter().converse(stream)

        return {
            "silent": silent,
            "closing": closing,
            "failing": failing,
            "late": late,
            "good": ScriptedDrafter().converse,
        }

    async def _pause(self) -> None:
        await asyncio.sleep(self.random.choice((0, 0, 0.001, 0.004)))

    def _call(self) -> Awaitable[Any]:
        some, choose = self.random.random, self.random.choice
        address, name = choose(ADDRESSES), choose(NAMES)
        known = name or address
        kind = self.random.randrange(10)
        if kind < 4:
            lease = None if some() < 0.4 else Duration(nanos=choose((1, 400_000, 3_000_000)), seconds=choose((0, 0, 9)))
            renewal = lease is not None and some() < 0.3
            request = pb.AttachDrafterRequest(address=address, name=name, lease=lease, renewal=renewal)
            return self.pool.AttachDrafter(request, None)
        if kind < 5:
            leaving = some() < 0.5
            return self.pool.RegisterDrafter(
                pb.RegisterDrafterRequest(address=address, name=name, leaving=leaving), None
            )
        if kind < 7:
            return self.pool.DetachDrafter(pb.DetachDrafterRequest(name=known), None)
        if kind < 8:
            return self.pool.SwapDrafter(pb.SwapDrafterRequest(old_name=known, new_name=choose(ADDRESSES)), None)
        if kind < 9:
            request = pb.StartRolloutRequest(old_name=known, new_name=choose(ADDRESSES), share=0.5)
            return self.pool.StartRollout(request, None)
        return self.pool.FinishRollout(pb.FinishRolloutRequest(new_name=known, promote=some() < 0.5), None)

    async def _caller(self, calls: int) -> None:
        for _ in range(calls):
            await self._pause()
            try:
                async with asyncio.timeout(self.random.choice((0, 0.002, 0.02, 20))):
                    await self._call()
                self.ends.add("OK")
            except TimeoutError:
                self.ends.add("TimeoutError")
            except ServiceError as error:
                self.ends.add(error.reason_name)
            self.pool._pool.describe()

    async def run(self, callers: int, calls: int) -> None:
        """Makes the calls, and takes everything back. Any exception but ServiceError is a failure."""
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(self._caller(calls))
        pool = self.verifier.pool
        await self.verifier.until(lambda: not pool.changes._operations._running)  # which outlive their calls
        assert not pool.membership._attempts
        for drafter in pool.roster.members:
            pool.membership.detach(drafter)
        await self.verifier.until(lambda: not pool.roster.alive)


async def play(
    verifier: InProcessVerifier, pool: DrafterPoolServicer, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> set[str]:
    monkeypatch.setattr(drafter_stream, "_HANDSHAKE_SECONDS", 0.03)
    ends: set[str] = set()
    for seed in seeds:
        each = Play(verifier, pool, seed)
        try:
            await each.run(callers=8, calls=20)
        except BaseException:
            print(f"seed {seed}")
            raise
        ends |= each.ends
    return ends


async def test_no_interleaving_of_changes_ends_in_another_error(
    verifier: InProcessVerifier, pool: DrafterPoolServicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = await play(verifier, pool, range(2), monkeypatch)
    assert {"OK", "TimeoutError", "DRAFTER_UNREACHABLE", "DRAFTER_NOT_FOUND", "BUSY", "DRAFTER_EXISTS"} <= ends


@pytest.mark.slow
class TestManyInterleavings:
    async def test_none_ends_in_another_error(
        self, verifier: InProcessVerifier, pool: DrafterPoolServicer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await play(verifier, pool, range(2, 60), monkeypatch)
