"""Rollouts: a new drafter gets a share of another one's sequences, then replaces it or is withdrawn."""

import asyncio
from typing import Any

import pytest

from draftwire.v1 import drafter_pool_service_pb2 as pb
from draftwire.v1.drafter_pool_service_pb2 import RolloutState
from draftwire.v1.speculation_pb2 import SpeculationOptions
from draftwire_core.pool.changes import rollouts as drafter_rollouts
from draftwire_core.pool.changes.rollouts import DrafterRollout, Side
from draftwire_core.pool.servicer import DrafterPoolServicer
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.in_process_verifier import PROMPT, InProcessVerifier, order
from tests.harness.stand_ins.drafter_answers import opened, wrong_batch
from tests.harness.stand_ins.scripted_drafter import right
from tests.harness.verifier.running import Running, failure

RUNNING = RolloutState.ROLLOUT_STATE_RUNNING
PROMOTED = RolloutState.ROLLOUT_STATE_PROMOTED
WITHDRAWN = RolloutState.ROLLOUT_STATE_WITHDRAWN


class TestShare:
    @pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9, 1.0])
    def test_one_after_the_other(self, share: float) -> None:
        rollout = DrafterRollout("old", "new", share)
        assert rollout.set_share(share, 0, 0) == 0
        sides = [rollout.next_side().name for _ in range(1000)]
        for count in (10, 50, 200, 1000):
            assert abs(sides[:count].count("new") - share * count) <= 1

    @pytest.mark.parametrize(("old", "new", "share", "moving"), [(8, 0, 0.25, 2), (6, 2, 0.5, 2), (2, 6, 0.25, -4)])
    def test_running_sequences_that_have_to_move(self, old: int, new: int, share: float, moving: int) -> None:
        assert DrafterRollout("old", "new", 0.9).set_share(share, old, new) == moving


class TestDraftingTime:
    def test_it_is_summed_without_what_the_machine_held_up(self) -> None:
        side = Side("new")
        for seconds in (0.002, 0.002, 30.0, 0.002):
            side.count_drafting(seconds)
        assert 0.006 < side.drafting_seconds < 0.02

    async def test_drafters_in_the_engine_have_some(self, verifier: InProcessVerifier, listening: Any) -> None:
        await verifier.pool.membership.attach("local:ngram", "local")
        listening("b:1")
        await verifier.pool.changes.start_rollout("local", "b:1", 0.5)
        for _ in range(2):
            await verifier.generate(order(max_tokens=20))
        (rollout,) = verifier.pool.rollouts.describe()
        for side in (rollout.old, rollout.new):
            assert side.sequence_steps >= side.steps
            assert side.sequence_steps > 0
        assert rollout.old.drafting_time.ToNanoseconds() > 0
        assert rollout.new.drafting_time.ToNanoseconds() == 0


async def many(verifier: InProcessVerifier, count: int, **fields: Any) -> list[asyncio.Task[Any]]:
    """Starts requests and holds them after one step."""
    verifier.engine.hold(1)
    return [asyncio.create_task(verifier.generate(order(**fields))) for _ in range(count)]


async def finish(verifier: InProcessVerifier, requests: list[asyncio.Task[Any]]) -> None:
    verifier.engine.go_on()
    outputs = await asyncio.gather(*requests)
    plain = await verifier.plain(order())
    assert all(output.token_ids == plain.token_ids for output in outputs)


async def test_running_requests_move_and_new_ones_keep_the_share(verifier: InProcessVerifier, listening: Any) -> None:
    first, second = listening("a:1"), listening("b:1")
    await verifier.pool.membership.attach("a:1", "")
    requests = await many(verifier, 8)
    await verifier.until(lambda: len(first.open) == 8)
    rollout = await verifier.pool.changes.start_rollout("a:1", "b:1", 0.25)
    assert (rollout.old.name, rollout.new.name, rollout.share, rollout.state) == ("a:1", "b:1", 0.25, RUNNING)
    assert (rollout.old.sequences, rollout.new.sequences) == (6, 2)
    requests += [asyncio.create_task(verifier.generate(order())) for _ in range(4)]
    await verifier.until(lambda: len(first.opened) == 8 + 3)
    assert len(second.opened) == 3
    rollout = await verifier.pool.changes.start_rollout("a:1", "b:1", 0.75)
    assert (rollout.old.sequences, rollout.new.sequences) == (3, 9)
    rollout = await verifier.pool.changes.start_rollout("a:1", "b:1", 0.5)
    assert (rollout.old.sequences, rollout.new.sequences) == (6, 6)
    assert len(verifier.pool.rollouts.describe()) == 1
    await finish(verifier, requests)


async def test_a_paused_drafter_is_tried(verifier: InProcessVerifier, listening: Any) -> None:
    listening("a:1"), listening("b:1")
    await verifier.pool.membership.attach("a:1", "")
    policy = (await verifier.pool.membership.attach("b:1", "")).pause_policy
    policy.price(1e-3, 0.0)
    policy.charge(1.0)
    policy.stepped(1)
    assert not policy._account.open
    await verifier.pool.changes.start_rollout("a:1", "b:1", 0.5)
    assert policy._account.open


async def test_promoting(verifier: InProcessVerifier, listening: Any) -> None:
    first, second = listening("a:1"), listening("b:1")
    await verifier.pool.membership.attach("a:1", "")
    requests = await many(verifier, 4)
    await verifier.until(lambda: len(first.open) == 4)
    await verifier.pool.changes.start_rollout("a:1", "b:1", 0.5)
    rollout = await verifier.pool.changes.finish_rollout("b:1", promote=True)
    assert (rollout.state, rollout.reason) == (PROMOTED, "promoted")
    assert rollout.ended_at.seconds >= rollout.started_at.seconds > 0
    assert [drafter.name for drafter in verifier.pool.describe()] == ["b:1"]
    await verifier.until(lambda: len(second.open) == 4)
    await finish(verifier, requests)


async def test_a_promotion_that_fails_changes_nothing(verifier: InProcessVerifier, listening: Any) -> None:
    first = listening("a:1")
    await verifier.pool.membership.attach("a:1", "")
    requests = await many(verifier, 2)
    await verifier.until(lambda: len(first.open) == 2)
    listening("b:1")
    await verifier.pool.changes.start_rollout("a:1", "b:1", 0.5)
    await verifier.network.kill("b:1")
    await verifier.until(lambda: verifier.state("a:1").sequences == 2)
    assert (await failure(verifier.pool.changes.finish_rollout("b:1", promote=True)))[1] == "DRAFTER_UNREACHABLE"
    assert [each.state for each in verifier.pool.rollouts.describe()] == [RUNNING]
    assert verifier.state("a:1").sequences == 2
    await finish(verifier, requests)


async def test_withdrawing(verifier: InProcessVerifier, listening: Any) -> None:
    first, second = listening("a:1"), listening("b:1")
    await verifier.pool.membership.attach("a:1", "")
    requests = await many(verifier, 4)
    await verifier.until(lambda: len(first.open) == 4)
    await verifier.pool.changes.start_rollout("a:1", "b:1", 0.5)
    rollout = await verifier.pool.changes.finish_rollout("b:1", promote=False)
    assert (rollout.state, rollout.reason) == (WITHDRAWN, "withdrawn")
    assert [drafter.name for drafter in verifier.pool.describe()] == ["a:1"]
    assert verifier.state("a:1").sequences == 4
    await verifier.until(lambda: second.ended)
    assert await failure(verifier.pool.changes.finish_rollout("b:1", promote=False)) == (
        "NOT_FOUND",
        "ROLLOUT_NOT_FOUND",
    )
    assert [each.state for each in verifier.pool.rollouts.describe()] == [WITHDRAWN]
    await finish(verifier, requests)


async def test_a_repeated_withdrawal_joins_the_one_under_way(verifier: InProcessVerifier, listening: Any) -> None:
    first = listening("a:1")
    await verifier.pool.membership.attach("a:1", "")
    requests = await many(verifier, 1)
    await verifier.until(lambda: first.open)
    listening("b:1")
    await verifier.pool.changes.start_rollout("a:1", "b:1", 1.0)
    first.says_opened = False
    calls = [asyncio.create_task(verifier.pool.changes.finish_rollout("b:1", promote=False))]
    await verifier.until(lambda: len(first.opened) == 2)
    calls.append(asyncio.create_task(verifier.pool.changes.finish_rollout("b:1", promote=False)))
    await asyncio.sleep(0)
    await first.say(opened(first.opened[-1]))
    assert [each.state for each in await asyncio.gather(*calls)] == [WITHDRAWN] * 2
    await finish(verifier, requests)


async def test_a_worse_one_is_withdrawn_by_itself(
    verifier: InProcessVerifier,
    twin: InProcessDrafter,
    stranger: InProcessDrafter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compares the target itself with a drafter that is hardly ever right, until the difference is significant."""
    monkeypatch.setattr(drafter_rollouts, "SAMPLE_STEPS", 2)
    await verifier.pool.membership.attach("twin:1", "")
    await verifier.pool.changes.start_rollout("twin:1", "stranger:1", 0.5)
    requests = [order([3 + index, 9], max_tokens=40) for index in range(4)]
    alone = [await verifier.plain(request) for request in requests]
    for _ in range(10):
        outputs = await asyncio.gather(*(verifier.generate(request) for request in requests))
        assert [output.token_ids for output in outputs] == [output.token_ids for output in alone]
        if verifier.state("stranger:1") is None:
            break
    (rollout,) = verifier.pool.rollouts.describe()
    assert rollout.state == WITHDRAWN
    assert "significantly worse" in rollout.reason
    assert "accepted tokens per step" in rollout.reason
    for side in (rollout.old, rollout.new):
        assert side.steps > 0
        assert side.draft_tokens >= side.accepted_tokens
    old_rate, new_rate = (side.accepted_tokens / side.draft_tokens for side in (rollout.old, rollout.new))
    assert new_rate < old_rate
    assert [drafter.name for drafter in verifier.pool.describe()] == ["twin:1"]


async def test_an_equal_one_is_not(
    verifier: InProcessVerifier, listening: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafter_rollouts, "SAMPLE_STEPS", 4)
    verifier.engine.drafts_awaited = True
    plain = await verifier.plain(order(max_tokens=50))
    text = [*PROMPT, *plain.token_ids]
    for address in ("a:1", "b:1"):
        listening(address, right(text, 1))
    await verifier.pool.membership.attach("a:1", "")
    await verifier.pool.changes.start_rollout("a:1", "b:1", 0.5)
    for _ in range(3):
        await asyncio.gather(*(verifier.generate(order(max_tokens=50)) for _ in range(6)))
    (rollout,) = verifier.pool.rollouts.describe()
    assert rollout.state == RUNNING
    assert rollout.new.accepted_tokens > 0
    assert min(side.sample.count for side in verifier.pool.rollouts._running[0].sides) >= 8


async def test_requests_that_name_a_side_stay_there(verifier: InProcessVerifier, listening: Any) -> None:
    first, second = listening("a:1"), listening("b:1")
    await verifier.pool.membership.attach("a:1", "")
    async with Running(verifier, speculation=SpeculationOptions(drafter="a:1")):
        await verifier.until(lambda: first.open)
        await verifier.pool.changes.start_rollout("a:1", "b:1", 1.0)
        assert first.open
        assert not second.opened


async def test_requests_with_several_drafters_get_one_of_the_two(verifier: InProcessVerifier, listening: Any) -> None:
    first, third, second = (listening(address) for address in ("a:1", "third:1", "b:1"))
    for address in ("a:1", "third:1"):
        await verifier.pool.membership.attach(address, "")
    await verifier.pool.changes.start_rollout("a:1", "b:1", 0.5)
    requests = await many(verifier, 4, speculation=SpeculationOptions(drafters=2))
    await verifier.until(lambda: len(third.open) == 4 and len(first.open) + len(second.open) == 4)
    assert (len(first.open), len(second.open)) == (2, 2)
    await finish(verifier, requests)


class TestFaults:
    async def test_calls(self, verifier: InProcessVerifier, listening: Any) -> None:
        for index in (1, 2, 3, 4):
            listening(f"a:{index}")
            await verifier.pool.membership.attach(f"a:{index}", "")
        pool = verifier.pool
        for share in (0.0, -1.0, 1.1, float("nan")):
            assert await failure(pool.changes.start_rollout("a:1", "a:2", share)) == (
                "INVALID_ARGUMENT",
                "INVALID_FIELD",
            )
        assert (await failure(pool.changes.start_rollout("nobody", "a:2", 0.5)))[1] == "DRAFTER_NOT_FOUND"
        assert (await failure(pool.changes.start_rollout("a:1", "a:1", 0.5)))[1] == "INVALID_FIELD"
        assert (await failure(pool.changes.start_rollout("a:1", "b:9", 0.5)))[1] == "DRAFTER_UNREACHABLE"
        assert (await failure(pool.changes.finish_rollout("a:2", True)))[1] == "ROLLOUT_NOT_FOUND"
        await pool.changes.start_rollout("a:1", "a:2", 0.5)
        assert (await failure(pool.changes.finish_rollout("a:1", True)))[1] == "ROLLOUT_NOT_FOUND"
        for call in (
            pool.changes.start_rollout("a:1", "a:3", 0.5),
            pool.changes.start_rollout("a:3", "a:2", 0.5),
            pool.changes.start_rollout("a:2", "a:1", 0.5),
            pool.changes.swap("a:1", "a:3"),
            pool.changes.swap("a:3", "a:2"),
            pool.changes.detach("a:1"),
            pool.changes.detach("a:2"),
        ):
            assert await failure(call) == ("FAILED_PRECONDITION", "BUSY")
        await pool.changes.start_rollout("a:3", "a:4", 0.5)
        assert len(pool.rollouts.describe()) == 2

    @pytest.mark.parametrize(("leaver", "state"), [("a:1", PROMOTED), ("b:1", WITHDRAWN)])
    async def test_a_side_that_leaves_ends_it(
        self, verifier: InProcessVerifier, listening: Any, leaver: str, state: RolloutState
    ) -> None:
        listening("a:1")
        listening("b:1")
        for address in ("a:1", "b:1"):
            verifier.pool.membership.register(address, "", leaving=False)
            await verifier.until(lambda address=address: verifier.pool.roster.named(address).ready)
        await verifier.pool.changes.start_rollout("a:1", "b:1", 0.5)
        verifier.pool.membership.register(leaver, "", leaving=True)
        await verifier.until(lambda: verifier.state(leaver) is None)
        (rollout,) = verifier.pool.rollouts.describe()
        assert (rollout.state, rollout.reason) == (state, f"{leaver} has left the pool")

    async def test_over_the_servicer(self, verifier: InProcessVerifier, listening: Any) -> None:
        listening("a:1")
        listening("b:1", lambda opening: [wrong_batch(opening, [])])
        await verifier.pool.membership.attach("a:1", "")
        servicer = DrafterPoolServicer(verifier.pool)
        started = await servicer.StartRollout(pb.StartRolloutRequest(old_name="a:1", new_name="b:1", share=1.0), None)
        assert started.rollout.state == RUNNING
        await verifier.generate(order())
        listed = (await servicer.ListRollouts(pb.ListRolloutsRequest(), None)).rollouts
        assert listed[0].new.draft_tokens >= 0
        finished = await servicer.FinishRollout(pb.FinishRolloutRequest(new_name="b:1", promote=True), None)
        assert finished.rollout.state == PROMOTED
        assert (await failure(servicer.FinishRollout(pb.FinishRolloutRequest(), None)))[1] == "INVALID_FIELD"
