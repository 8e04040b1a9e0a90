"""Swaps while requests run: make before break, whatever happens to the caller or the new drafter."""

import asyncio
from typing import Any

import pytest

from draftwire._auth.security import Security
from draftwire._calls.channel import AsyncChannels
from draftwire.v1 import drafter_pool_service_pb2 as pb
from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from draftwire.v1.speculation_pb2 import SpeculationOptions
from draftwire_core.pool.changes import swap as drafter_swap
from draftwire_core.pool.drafter.channel import drafter_channels
from draftwire_core.pool.servicer import DrafterPoolServicer
from draftwire_core.runtime.errors import ServiceError, at_capacity
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.in_process_verifier import PATIENCE, PROMPT, InProcessVerifier, order, sampled
from tests.harness.stand_ins.drafter_answers import fault, opened
from tests.harness.stand_ins.scripted_drafter import right
from tests.harness.verifier.running import Running, failure

READY = DrafterState.DRAFTER_STATE_READY
DRAINING = DrafterState.DRAFTER_STATE_DRAINING


async def cancelled(call: Any, verifier: InProcessVerifier, condition: Any) -> None:
    """Starts a call and cancels it once a condition holds."""
    calling = asyncio.create_task(call)
    await verifier.until(condition)
    calling.cancel()
    await asyncio.wait({calling})
    assert calling.cancelled()


class TestTheCallerGivesUp:
    async def test_a_swap_goes_on(self, verifier: InProcessVerifier, listening: Any) -> None:
        first = listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier):
            await verifier.until(lambda: first.open)
            second = listening("b:1", says_opened=False)
            await cancelled(verifier.pool.changes.swap("a:1", "b:1"), verifier, lambda: second.opened)
            assert verifier.state("a:1").state == DRAINING
            await second.say(opened(second.opened[-1]))
            await verifier.until(lambda: verifier.state("a:1") is None)
            assert verifier.state("b:1").sequences == 1
            await verifier.until(lambda: not first.open)

    async def test_a_detachment_goes_on(self, verifier: InProcessVerifier, listening: Any) -> None:
        first, second = listening("a:1"), listening("b:1", says_opened=False)
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier):
            await verifier.until(lambda: first.open)
            await verifier.pool.membership.attach("b:1", "")
            await cancelled(verifier.pool.changes.detach("a:1"), verifier, lambda: second.opened)
            await second.say(opened(second.opened[-1]))
            await verifier.until(lambda: verifier.state("a:1") is None)

    async def test_a_swap_that_fails_afterwards_is_no_unseen_exception(
        self, verifier: InProcessVerifier, listening: Any
    ) -> None:
        """The verifier fixture fails on unhandled exceptions."""
        first = listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier):
            await verifier.until(lambda: first.open)
            second = listening("b:1", says_opened=False)
            await cancelled(verifier.pool.changes.swap("a:1", "b:1"), verifier, lambda: second.opened)
            await verifier.network.kill("b:1")
            await verifier.until(lambda: verifier.state("a:1").state == READY)


class TestTheNewOneFails:
    async def test_it_does_not_catch_up(
        self, verifier: InProcessVerifier, listening: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One of two sequences has moved when the time is up: it keeps the new drafter, the other one the old."""
        monkeypatch.setattr(drafter_swap, "_MOVE_SECONDS", 0.3)
        first = listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        plain = await verifier.plain(order())
        verifier.engine.hold(1)
        requests = [asyncio.create_task(verifier.generate(order())) for _ in range(2)]
        await verifier.until(lambda: len(first.open) == 2)
        second = listening("b:1", says_opened=False)
        swapping = asyncio.create_task(failure(verifier.pool.changes.swap("a:1", "b:1")))
        await verifier.until(lambda: len(second.opened) == 2)
        await second.say(opened(second.opened[-1]))
        assert await swapping == ("UNAVAILABLE", "DRAFTER_UNREACHABLE")
        assert (verifier.state("a:1").state, verifier.state("b:1").state) == (READY, READY)
        assert (verifier.state("a:1").sequences, verifier.state("b:1").sequences) == (1, 1)
        verifier.engine.go_on()
        outputs = await asyncio.gather(*requests)
        assert [output.token_ids for output in outputs] == [plain.token_ids] * 2

    async def test_it_dies(self, verifier: InProcessVerifier, listening: Any) -> None:
        verifier.engine.drafts_awaited = True
        plain = await verifier.plain(order())
        first = listening("a:1", right([*PROMPT, *plain.token_ids]))
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier) as running:
            await verifier.until(lambda: first.open)
            second = listening("b:1", says_opened=False)
            swapping = asyncio.create_task(failure(verifier.pool.changes.swap("a:1", "b:1")))
            await verifier.until(lambda: second.opened)
            await verifier.network.kill("b:1")
            assert await swapping == ("UNAVAILABLE", "DRAFTER_UNREACHABLE")
            assert verifier.state("a:1").state == READY
            assert verifier.state("a:1").sequences == 1
        assert running.output.sources[-8:].count("a:1") > 4, "the old one drafts on"

    async def test_it_refuses_one_sequence_which_goes_on_plainly(
        self, verifier: InProcessVerifier, listening: Any
    ) -> None:
        """A fault of one sequence is no reason to keep the old drafter."""
        first = listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier):
            await verifier.until(lambda: first.open)
            listening("b:1", fault(at_capacity("full", 60.0)), says_opened=False)
            _, moved = await verifier.pool.changes.swap("a:1", "b:1")
            assert moved == 0
            assert [drafter.name for drafter in verifier.pool.describe()] == ["b:1"]

    async def test_requests_that_begin_meanwhile_and_name_the_old_one(
        self, verifier: InProcessVerifier, listening: Any
    ) -> None:
        first = listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        named = SpeculationOptions(drafter="a:1")
        async with Running(verifier, speculation=named):
            await verifier.until(lambda: first.open)
            second = listening("b:1", says_opened=False)
            swapping = asyncio.create_task(verifier.pool.changes.swap("a:1", "b:1"))
            await verifier.until(lambda: len(second.opened) == 1)
            late = asyncio.create_task(verifier.generate(order(speculation=named)))
            await verifier.until(lambda: len(second.opened) == 2)
            for opening in second.opened:
                await second.say(opened(opening))
            assert (await swapping)[1] == 1
            assert verifier.state("b:1").sequences == 2
            verifier.engine.go_on()
            await late


class TestRequestIds:
    async def test_a_repeated_call_joins_and_gets_the_result(self, verifier: InProcessVerifier, listening: Any) -> None:
        first = listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        servicer = DrafterPoolServicer(verifier.pool)
        request = pb.SwapDrafterRequest(old_name="a:1", new_name="b:1", request_id="mine")
        async with Running(verifier):
            await verifier.until(lambda: first.open)
            second = listening("b:1", says_opened=False)
            calls = [asyncio.create_task(servicer.SwapDrafter(request, None)) for _ in range(2)]
            await verifier.until(lambda: second.opened)
            await second.say(opened(second.opened[-1]))
            async with asyncio.timeout(PATIENCE):
                answers = await asyncio.gather(*calls)
                answers.append(await servicer.SwapDrafter(request, None))
            assert [answer.moved_sequences for answer in answers] == [1, 1, 1]
            assert [answer.drafter.name for answer in answers] == ["b:1"] * 3
            assert len(second.opened) == 1

    async def test_another_call_cannot_have_the_same_id(self, verifier: InProcessVerifier, listening: Any) -> None:
        for address in ("a:1", "b:1", "c:1"):
            listening(address)
        await verifier.pool.membership.attach("a:1", "")
        await verifier.pool.changes.swap("a:1", "b:1", "mine")
        assert await failure(verifier.pool.changes.swap("b:1", "c:1", "mine")) == ("INVALID_ARGUMENT", "INVALID_FIELD")

    async def test_a_failed_swap_may_be_tried_again(self, verifier: InProcessVerifier, listening: Any) -> None:
        listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        assert (await failure(verifier.pool.changes.swap("a:1", "b:1", "mine")))[1] == "DRAFTER_UNREACHABLE"
        listening("b:1")
        assert (await verifier.pool.changes.swap("a:1", "b:1", "mine"))[0].name == "b:1"

    async def test_without_an_id_nothing_is_remembered(self, verifier: InProcessVerifier, listening: Any) -> None:
        listening("a:1")
        listening("b:1")
        await verifier.pool.membership.attach("a:1", "")
        await verifier.pool.changes.swap("a:1", "b:1")
        assert (await failure(verifier.pool.changes.swap("a:1", "b:1")))[1] == "DRAFTER_NOT_FOUND"


async def test_a_drafter_that_is_being_swapped_is_busy(verifier: InProcessVerifier, listening: Any) -> None:
    first = listening("a:1")
    listening("c:1")
    await verifier.pool.membership.attach("a:1", "")
    async with Running(verifier):
        await verifier.until(lambda: first.open)
        second = listening("b:1", says_opened=False)
        await verifier.pool.membership.attach("c:1", "")
        swapping = asyncio.create_task(verifier.pool.changes.swap("a:1", "b:1"))
        await verifier.until(lambda: second.opened)
        for call in (
            verifier.pool.changes.swap("a:1", "c:1"),
            verifier.pool.changes.swap("c:1", "b:1"),
            verifier.pool.changes.detach("a:1"),
            verifier.pool.changes.detach("b:1"),
            verifier.pool.changes.start_rollout("c:1", "b:1", 0.5),
        ):
            assert await failure(call) == ("FAILED_PRECONDITION", "BUSY")
        await second.say(opened(second.opened[-1]))
        await swapping
        await verifier.pool.changes.detach("b:1")


async def test_an_address_that_may_not_be_called_is_refused_by_the_name_of_its_field(
    verifier: InProcessVerifier, listening: Any
) -> None:
    listening("a:1")
    await verifier.pool.membership.attach("a:1", "")
    verifier.pool.membership._factory._connect = drafter_channels(AsyncChannels(Security()))
    changes = verifier.pool.changes
    for call in (changes.swap("a:1", "far:1"), changes.start_rollout("a:1", "far:1", 0.5)):
        with pytest.raises(ServiceError, match=r"^new_name: far:1 is on another machine") as caught:
            await call
        assert [each.field for each in caught.value.field_violations] == ["new_name"]


async def test_the_new_one_takes_its_leave_while_it_takes_over(verifier: InProcessVerifier, listening: Any) -> None:
    first = listening("a:1")
    await verifier.pool.membership.attach("a:1", "")
    async with Running(verifier):
        await verifier.until(lambda: first.open)
        second = listening("b:1", says_opened=False)
        verifier.pool.membership.register("b:1", "", leaving=False)
        await verifier.until(lambda: verifier.state("b:1").state == READY)
        swapping = asyncio.create_task(failure(verifier.pool.changes.swap("a:1", "b:1")))
        await verifier.until(lambda: second.opened)
        verifier.pool.membership.register("b:1", "", leaving=True)
        await second.say(opened(second.opened[-1]))
        assert (await swapping)[1] == "DRAFTER_UNREACHABLE"
        await verifier.until(lambda: verifier.state("b:1") is None)
        assert verifier.state("a:1").state == READY
        await verifier.until(lambda: verifier.state("a:1").sequences == 1)


async def check_swaps_there_and_back(verifier: InProcessVerifier, *, count: int, max_tokens: int) -> None:
    """With real drafters and several requests, every token is that of plain decoding."""
    requests = [order([index + 3, 8, 30], max_tokens=max_tokens, sampling=sampled()) for index in range(count)]
    alone = [await verifier.plain(request) for request in requests]
    await verifier.pool.membership.attach("twin:1", "")
    verifier.engine.hold(2)
    running = [asyncio.create_task(verifier.generate(request)) for request in requests]
    await verifier.until(lambda: verifier.state("twin:1").sequences == count)
    moved = 0
    for old, new in (("twin:1", "stranger:1"), ("stranger:1", "twin:1"), ("twin:1", "stranger:1")):
        swapping = asyncio.create_task(verifier.pool.changes.swap(old, new, f"{old} {new} {moved}"))
        verifier.engine.hold(2)
        moved += (await swapping)[1]
    verifier.engine.go_on()
    outputs = await asyncio.gather(*running)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in alone]
    assert moved == 3 * count
    assert [drafter.name for drafter in verifier.pool.describe()] == ["stranger:1"]
    await verifier.freed()


async def test_swaps_there_and_back_under_load(
    verifier: InProcessVerifier, twin: InProcessDrafter, stranger: InProcessDrafter
) -> None:
    await check_swaps_there_and_back(verifier, count=2, max_tokens=80)


@pytest.mark.slow
class TestManyRequests:
    async def test_swaps_there_and_back_under_load(
        self, verifier: InProcessVerifier, twin: InProcessDrafter, stranger: InProcessDrafter
    ) -> None:
        await check_swaps_there_and_back(verifier, count=5, max_tokens=200)
