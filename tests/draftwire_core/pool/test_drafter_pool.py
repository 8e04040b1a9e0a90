"""Drafters come and go: by call, by announcement, by accident."""

import asyncio
from typing import Any

import grpc
import pytest

from draftwire.v1 import drafter_pool_service_pb2 as pb
from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from draftwire.v1.speculation_pb2 import SpeculationOptions
from draftwire_core.pool.announcing import heartbeats
from draftwire_core.pool.changes import swap as drafter_swap
from draftwire_core.pool.routing import roster
from draftwire_core.pool.servicer import DrafterPoolServicer
from draftwire_core.runtime.errors import ServiceError, at_capacity
from tests.harness.services.in_process_verifier import PATIENCE, PROMPT, InProcessVerifier, order
from tests.harness.stand_ins.drafter_answers import fault
from tests.harness.stand_ins.scripted_drafter import Stream, hello, right
from tests.harness.verifier.running import Running, failure

READY = DrafterState.DRAFTER_STATE_READY
DRAINING = DrafterState.DRAFTER_STATE_DRAINING
UNREACHABLE = DrafterState.DRAFTER_STATE_UNREACHABLE


class TestAttach:
    async def test_it_is_described(self, verifier: InProcessVerifier, listening: Any) -> None:
        listening("a:1")
        await verifier.pool.membership.attach("a:1", "name")
        (drafter,) = verifier.pool.describe()
        assert (drafter.name, drafter.address, drafter.state) == ("name", "a:1", READY)
        assert drafter.model.model_id == "scripted"
        assert drafter.attached_at.seconds > 0
        assert not drafter.announced

    async def test_again_is_the_same(self, verifier: InProcessVerifier, listening: Any) -> None:
        listening("a:1")
        first = await verifier.pool.membership.attach("a:1", "")
        assert await verifier.pool.membership.attach("a:1", "") is first
        assert await verifier.pool.membership.attach("a:1", "a:1") is first
        assert verifier.network.attempts == {"a:1": 1}

    async def test_the_name_is_taken(self, verifier: InProcessVerifier, listening: Any) -> None:
        listening("a:1")
        await verifier.pool.membership.attach("a:1", "x")
        assert await failure(verifier.pool.membership.attach("b:1", "x")) == ("ALREADY_EXISTS", "DRAFTER_EXISTS")
        assert [drafter.address for drafter in verifier.pool.describe()] == ["a:1"]

    @pytest.mark.parametrize(
        ("address", "reason"),
        [
            ("nowhere", "INVALID_FIELD"),
            ("a:99999", "INVALID_FIELD"),
            ("a:0", "INVALID_FIELD"),
            ("local:x", "UNSUPPORTED_DRAFTER"),
        ],
    )
    async def test_the_address_is_none(self, verifier: InProcessVerifier, address: str, reason: str) -> None:
        assert await failure(verifier.pool.membership.attach(address, "")) == ("INVALID_ARGUMENT", reason)

    async def test_requests_that_run_plainly_get_it(self, verifier: InProcessVerifier, listening: Any) -> None:
        drafter = listening("a:1")
        async with Running(verifier):
            await verifier.pool.membership.attach("a:1", "")
            await verifier.until(lambda: drafter.opened)
            assert drafter.opened[0].committed_length >= len(PROMPT)
            assert drafter.opened[0].max_length == len(PROMPT) + 24

    async def test_one_given_at_start_is_tried_until_it_is_there(
        self, verifier: InProcessVerifier, listening: Any
    ) -> None:
        verifier.pool.membership.add("a:1")
        await verifier.until(lambda: verifier.state("a:1").state == UNREACHABLE)
        assert verifier.state("a:1").last_error.code == grpc.StatusCode.UNAVAILABLE.value[0]
        assert await failure(verifier.pool.membership.attach("a:1", "")) == ("UNAVAILABLE", "DRAFTER_UNREACHABLE")
        assert verifier.state("a:1") is not None, "it was there before the call"
        listening("a:1")
        await verifier.until(lambda: verifier.state("a:1").state == READY)
        assert verifier.state("a:1").last_error.code == 0
        assert (await verifier.pool.membership.attach("a:1", "")).ready, "what once failed does not stick"

    async def test_a_caller_that_gives_up_leaves_nothing(
        self, verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def silent(stream: Stream) -> None:
            while await stream.read() is not None:
                pass

        verifier.network.listen("silent:1", silent)
        attaching = asyncio.create_task(verifier.pool.membership.attach("silent:1", ""))
        await verifier.until(verifier.pool.describe)
        attaching.cancel()
        await asyncio.wait({attaching})
        assert verifier.pool.describe() == []


class TestDetach:
    async def test_unknown(self, verifier: InProcessVerifier) -> None:
        assert await failure(verifier.pool.changes.detach("nobody")) == ("NOT_FOUND", "DRAFTER_NOT_FOUND")

    async def test_the_conversation_ends(self, verifier: InProcessVerifier, listening: Any) -> None:
        drafter = listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        await verifier.pool.changes.detach("a:1")
        await verifier.until(lambda: drafter.ended == 1)
        assert verifier.network.attempts == {"a:1": 1}

    async def test_one_that_does_not_say_good_bye_is_left(
        self, verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(roster, "_GOODBYE_SECONDS", 0.05)
        left = asyncio.Event()

        async def rude(stream: Stream) -> None:
            await stream.read()
            await stream.write(hello())
            try:
                await asyncio.Event().wait()
            finally:
                left.set()

        verifier.network.listen("rude:1", rude)
        await verifier.pool.membership.attach("rude:1", "")
        await verifier.pool.changes.detach("rude:1")
        async with asyncio.timeout(PATIENCE):
            await left.wait()

    async def test_one_that_cannot_be_reached(self, verifier: InProcessVerifier) -> None:
        verifier.pool.membership.add("nobody:1")
        await verifier.pool.changes.detach("nobody:1")
        assert verifier.pool.describe() == []

    async def test_its_requests_move_to_another_once_that_has_caught_up(
        self, verifier: InProcessVerifier, listening: Any
    ) -> None:
        first, second = listening("a:1"), listening("b:1")
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier):
            await verifier.until(lambda: first.open)
            await verifier.pool.membership.attach("b:1", "")
            assert not second.open
            described = await verifier.pool.changes.detach("a:1")
            assert described.sequences == 0
            assert len(second.open) == 1
            await verifier.until(lambda: not first.open)

    async def test_twice_at_once(self, verifier: InProcessVerifier, listening: Any) -> None:
        first, second = listening("a:1"), listening("b:1")
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier):
            await verifier.until(lambda: first.open)
            await verifier.pool.membership.attach("b:1", "")
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(verifier.pool.changes.detach("a:1"), verifier.pool.changes.detach("a:1"))
            assert len(second.open) == 1
        assert [drafter.name for drafter in verifier.pool.describe()] == ["b:1"]

    async def test_the_new_one_does_not_catch_up(
        self, verifier: InProcessVerifier, listening: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(drafter_swap, "_MOVE_SECONDS", 0.05)
        first = listening("a:1")
        listening("b:1", says_opened=False)
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier):
            await verifier.until(lambda: first.open)
            await verifier.pool.membership.attach("b:1", "")
            async with asyncio.timeout(PATIENCE):
                await verifier.pool.changes.detach("a:1")

    async def test_the_new_one_refuses_and_a_third_takes_over(
        self, verifier: InProcessVerifier, listening: Any
    ) -> None:
        first = listening("a:1")
        full = listening("full:1", fault(at_capacity("full", 1.0)), says_opened=False)
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier):
            await verifier.until(lambda: first.open)
            await verifier.pool.membership.attach("full:1", "")
            third = listening("c:1")
            await verifier.pool.membership.attach("c:1", "")
            await verifier.pool.changes.detach("a:1")
            await verifier.until(lambda: third.open)
            assert len(full.opened) == 1

    async def test_the_request_ends_meanwhile(self, verifier: InProcessVerifier, listening: Any) -> None:
        first, second = listening("a:1"), listening("b:1", says_opened=False)
        await verifier.pool.membership.attach("a:1", "")
        verifier.engine.hold(1)
        request = asyncio.create_task(verifier.generate(order()))
        await verifier.until(lambda: first.open)
        await verifier.pool.membership.attach("b:1", "")
        detaching = asyncio.create_task(verifier.pool.changes.detach("a:1"))
        await verifier.until(lambda: second.open)
        request.cancel()
        async with asyncio.timeout(PATIENCE):
            await detaching
        await verifier.until(lambda: not second.open)
        assert verifier.state("b:1").sequences == 0

    async def test_the_request_ends_in_the_same_turn(self, verifier: InProcessVerifier, listening: Any) -> None:
        """Nothing is opened for a request that has ended."""
        first, second = listening("a:1"), listening("b:1")
        await verifier.pool.membership.attach("a:1", "")
        verifier.engine.hold(1)
        request = asyncio.create_task(verifier.generate(order()))
        await verifier.until(lambda: first.open)
        await verifier.pool.membership.attach("b:1", "")
        detaching = asyncio.create_task(verifier.pool.changes.detach("a:1"))
        request.cancel()
        await detaching
        assert verifier.state("b:1").sequences == 0
        await verifier.until(lambda: not second.open)


class TestSwap:
    async def test_faults(self, verifier: InProcessVerifier, listening: Any) -> None:
        listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        assert await failure(verifier.pool.changes.swap("nobody", "a:1")) == ("NOT_FOUND", "DRAFTER_NOT_FOUND")
        assert await failure(verifier.pool.changes.swap("a:1", "a:1")) == ("INVALID_ARGUMENT", "INVALID_FIELD")
        assert await failure(verifier.pool.changes.swap("a:1", "b:1")) == ("UNAVAILABLE", "DRAFTER_UNREACHABLE")
        assert await failure(verifier.pool.changes.swap("a:1", "nonsense")) == ("INVALID_ARGUMENT", "INVALID_FIELD")
        assert [(drafter.name, drafter.state) for drafter in verifier.pool.describe()] == [("a:1", READY)]

    async def test_make_before_break(self, verifier: InProcessVerifier, listening: Any) -> None:
        first = listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier):
            await verifier.until(lambda: first.open)
            second = listening("b:1", says_opened=False)
            swapping = asyncio.create_task(verifier.pool.changes.swap("a:1", "b:1"))
            await verifier.until(lambda: second.opened)
            assert first.open, "it drafts until the new one has caught up"
            assert verifier.state("a:1").state == DRAINING
            swapping.cancel()

    async def test_the_new_one_takes_over_all_requests(self, verifier: InProcessVerifier, listening: Any) -> None:
        first, second = listening("a:1"), listening("b:1")
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier):
            await verifier.until(lambda: first.open)
            attached, moved = await verifier.pool.changes.swap("a:1", "b:1")
            assert (attached.name, moved) == ("b:1", 1)
            assert [drafter.name for drafter in verifier.pool.describe()] == ["b:1"]
            assert second.opened[0].committed_length >= len(PROMPT)

    async def test_a_request_that_named_the_old_one_moves_too(
        self, verifier: InProcessVerifier, listening: Any
    ) -> None:
        first, second = listening("a:1"), listening("b:1")
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier, speculation=SpeculationOptions(drafter="a:1")):
            await verifier.until(lambda: first.open)
            assert (await verifier.pool.changes.swap("a:1", "b:1"))[1] == 1
            assert second.open


class TestRequests:
    async def test_a_drafter_that_is_not_attached(self, verifier: InProcessVerifier) -> None:
        request = order(speculation=SpeculationOptions(drafter="nobody"))
        assert await failure(verifier.generate(request)) == ("NOT_FOUND", "DRAFTER_NOT_FOUND")

    async def test_they_are_spread_over_the_drafters(self, verifier: InProcessVerifier, listening: Any) -> None:
        drafters = [listening(f"a:{index}") for index in (1, 2, 3)]
        for index in (1, 2, 3):
            await verifier.pool.membership.attach(f"a:{index}", "")
        verifier.engine.hold(0)
        requests = [asyncio.create_task(verifier.generate(order(max_tokens=4))) for _ in range(6)]
        await verifier.until(lambda: all(len(drafter.open) == 2 for drafter in drafters))
        verifier.engine.go_on()
        await asyncio.gather(*requests)
        await verifier.until(lambda: not any(drafter.open for drafter in drafters))

    async def test_a_lost_drafters_requests_go_to_another(self, verifier: InProcessVerifier, listening: Any) -> None:
        first = listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier) as running:
            await verifier.until(lambda: first.open)
            verifier.engine.drafts_awaited = True
            second = listening("b:1", right([*PROMPT, *running.plain.token_ids]))
            await verifier.pool.membership.attach("b:1", "")
            await verifier.network.kill("a:1")
            await verifier.until(lambda: second.open)
        assert "b:1" in running.output.sources
        assert verifier.state("a:1").state == UNREACHABLE
        assert verifier.state("b:1").accepted_tokens == running.output.finished.speculation.accepted_tokens > 0


class TestAnnouncing:
    async def test_it_attaches_itself(self, verifier: InProcessVerifier, listening: Any) -> None:
        listening("a:1")
        assert verifier.pool.membership.register("a:1", "me", leaving=False)
        await verifier.until(lambda: verifier.state("me").state == READY)
        assert verifier.state("me").announced
        assert not verifier.pool.membership.register("a:1", "me", leaving=False), "a heartbeat changes nothing"
        assert len(verifier.pool.describe()) == 1

    async def test_what_is_new_is_told_from_heartbeats(self, verifier: InProcessVerifier, listening: Any) -> None:
        listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        assert verifier.pool.membership.register("a:1", "", leaving=False), "it had not announced itself before"
        assert not verifier.pool.membership.register("a:1", "", leaving=False)
        assert verifier.pool.membership.register("a:1", "", leaving=False, labels={"domain": "code"})
        assert not verifier.pool.membership.register("a:1", "", leaving=False, labels={"domain": "code"})
        assert verifier.pool.membership.register("a:1", "", leaving=True)

    async def test_it_leaves(self, verifier: InProcessVerifier, listening: Any) -> None:
        drafter = listening("a:1")
        verifier.pool.membership.register("a:1", "", leaving=False)
        async with Running(verifier):
            await verifier.until(lambda: drafter.open)
            verifier.pool.membership.register("a:1", "", leaving=True)
            await verifier.until(lambda: verifier.pool.describe() == [])
            await verifier.until(lambda: drafter.ended)

    async def test_leaving_unknown(self, verifier: InProcessVerifier) -> None:
        verifier.pool.membership.register("a:1", "", leaving=True)
        assert verifier.pool.describe() == []

    async def test_a_heartbeat_that_stays_out(
        self, verifier: InProcessVerifier, listening: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drafter = listening("a:1")
        async with Running(verifier):
            verifier.pool.membership.register("a:1", "", leaving=False)
            await verifier.until(lambda: verifier.state("a:1").state == READY)
            monkeypatch.setattr(heartbeats, "HEARTBEAT_SECONDS", 0.02)
            verifier.pool.membership.register("a:1", "", leaving=False)
            await verifier.until(lambda: drafter.ended and verifier.pool.describe() == [])

    async def test_a_detached_one_is_not_brought_back_by_its_heartbeat(
        self, verifier: InProcessVerifier, listening: Any
    ) -> None:
        listening("a:1")
        verifier.pool.membership.register("a:1", "", leaving=False)
        await verifier.until(lambda: verifier.state("a:1").state == READY)
        await verifier.pool.changes.detach("a:1")
        verifier.pool.membership.register("a:1", "", leaving=False)
        assert verifier.pool.describe() == []
        await verifier.pool.membership.attach("a:1", "")
        verifier.pool.membership.register("a:1", "", leaving=False)
        assert verifier.state("a:1").announced

    async def test_a_detached_one_is_welcome_after_a_restart(self, verifier: InProcessVerifier, listening: Any) -> None:
        listening("a:1")
        verifier.pool.membership.register("a:1", "", leaving=False)
        await verifier.until(lambda: verifier.state("a:1").state == READY)
        await verifier.pool.changes.detach("a:1")
        verifier.pool.membership.register("a:1", "", leaving=True)
        verifier.pool.membership.register("a:1", "", leaving=False)
        await verifier.until(lambda: verifier.state("a:1").state == READY)

    async def test_a_detached_ones_missing_heartbeat_harms_nobody(
        self, verifier: InProcessVerifier, listening: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        listening("a:1")
        verifier.pool.membership.register("a:1", "", leaving=False)
        await verifier.until(lambda: verifier.state("a:1").state == READY)
        monkeypatch.setattr(heartbeats, "HEARTBEAT_SECONDS", 0.01)
        await verifier.pool.changes.detach("a:1")
        await verifier.until(lambda: not verifier.pool.membership._heartbeats._dismissed)
        verifier.pool.membership.register("a:1", "", leaving=False)
        assert verifier.state("a:1") is not None

    async def test_a_name_at_another_address_disturbs_nobody(
        self, verifier: InProcessVerifier, listening: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A drafter that was killed and restarts at another port gets its name once the old heartbeat has expired."""
        monkeypatch.setattr(heartbeats, "HEARTBEAT_SECONDS", 0.05)
        listening("a:1")
        listening("b:1")
        verifier.pool.membership.register("a:1", "me", leaving=False)

        def registered() -> bool:
            if verifier.state("me") is not None:
                with pytest.raises(ServiceError, match="attached already"):
                    verifier.pool.membership.register("b:1", "me", leaving=False)
                return False
            verifier.pool.membership.register("b:1", "me", leaving=False)
            return True

        await verifier.until(registered)
        assert verifier.state("me").address == "b:1"
        with pytest.raises(ServiceError):
            verifier.pool.membership.register("a:1", "me", leaving=True)
        assert verifier.state("me").address == "b:1"


class TestServicer:
    async def test_fields_that_are_missing(self, verifier: InProcessVerifier) -> None:
        servicer = DrafterPoolServicer(verifier.pool)
        calls = {
            "address": servicer.AttachDrafter(pb.AttachDrafterRequest(), None),
            "name": servicer.DetachDrafter(pb.DetachDrafterRequest(), None),
            "old_name": servicer.SwapDrafter(pb.SwapDrafterRequest(new_name="x"), None),
            "new_name": servicer.SwapDrafter(pb.SwapDrafterRequest(old_name="x"), None),
        }
        for field, call in calls.items():
            with pytest.raises(ServiceError) as caught:
                await call
            assert [violation.field for violation in caught.value.field_violations] == [field]

    async def test_an_address_that_is_none_is_named_as_the_caller_knows_it(
        self, verifier: InProcessVerifier, listening: Any
    ) -> None:
        listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        servicer = DrafterPoolServicer(verifier.pool)
        with pytest.raises(ServiceError) as caught:
            await servicer.SwapDrafter(pb.SwapDrafterRequest(old_name="a:1", new_name="nowhere"), None)
        assert [violation.field for violation in caught.value.field_violations] == ["new_name"]
        assert caught.value.message.startswith("new_name: no drafter named 'nowhere' is attached")
        assert verifier.state("a:1").state == READY

    async def test_a_heartbeat_is_told_when_the_next_is_due(self, verifier: InProcessVerifier, listening: Any) -> None:
        listening("a:1")
        servicer = DrafterPoolServicer(verifier.pool)
        answer = await servicer.RegisterDrafter(pb.RegisterDrafterRequest(address="a:1"), None)
        assert answer.heartbeat_interval.ToTimedelta().total_seconds() == heartbeats.HEARTBEAT_SECONDS

    async def test_watching(self, verifier: InProcessVerifier, listening: Any) -> None:
        listening("a:1")
        watch = DrafterPoolServicer(verifier.pool).WatchDrafters(pb.WatchDraftersRequest(), None)
        async with asyncio.timeout(PATIENCE):
            assert list((await anext(watch)).drafters) == []
            await verifier.pool.membership.attach("a:1", "")
            while not (state := (await anext(watch)).drafters) or state[0].state != READY:
                pass
            await verifier.pool.changes.detach("a:1")
            while (await anext(watch)).drafters:
                pass

    async def test_the_shutdown_ends_watches(self, verifier: InProcessVerifier) -> None:
        """Open watches would delay the shutdown for the whole grace time."""
        watch = DrafterPoolServicer(verifier.pool).WatchDrafters(pb.WatchDraftersRequest(), None)
        await anext(watch)
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            await verifier.verifier.drain(1.0)
            with pytest.raises(ServiceError) as caught:
                await waiting
        assert caught.value.reason_name == "SHUTTING_DOWN"
