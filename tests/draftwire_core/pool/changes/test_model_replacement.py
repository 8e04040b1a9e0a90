"""A drafter service loads another model: its sequences move, make before break, and its name stays."""

import asyncio
from typing import Any

import grpc
import pytest

from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from draftwire_core.pool.standing import standings as drafter_standing
from draftwire_core.runtime.errors import invalid_field
from draftwire_core.runtime.rpc.message_stream import StreamBroken
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.in_process_verifier import PROMPT, InProcessVerifier, order, sampled
from tests.harness.stand_ins.drafter_answers import fault, greeting, opened, replaced
from tests.harness.stand_ins.scripted_drafter import ScriptedDrafter, Stream, right
from tests.harness.verifier.running import Running

READY = DrafterState.DRAFTER_STATE_READY


async def test_its_sequences_move_and_the_name_stays(verifier: InProcessVerifier, listening: Any) -> None:
    first: ScriptedDrafter = listening("a:1")
    await verifier.pool.membership.attach("a:1", "me", {"domain": "code"})
    async with Running(verifier) as running:
        await verifier.until(lambda: first.open)
        text = [*PROMPT, *running.plain.token_ids]
        second = listening("a:1", right(text), greeting=greeting("newer"), says_opened=False)
        before = verifier.state("me")
        await first.say(replaced())
        await verifier.until(lambda: second.opened)
        assert first.open, "the old stream drafts until the new one has caught up"
        assert [drafter.name for drafter in verifier.pool.describe()] == ["me"]
        await second.say(opened(second.opened[-1]))
        await verifier.until(lambda: first.ended)
        after = verifier.state("me")
        assert (after.state, after.model.model_id, after.sequences) == (READY, "newer", 1)
        assert after.attached_at == before.attached_at
        assert dict(after.labels) == {"domain": "code"}
        verifier.engine.drafts_awaited = True
    assert "me" in running.output.sources
    assert {each.name for each in running.output.finished.speculation.drafters} == {"me"}


async def test_a_request_that_the_old_model_refused_is_given_to_the_new_one(
    verifier: InProcessVerifier, listening: Any
) -> None:
    first: ScriptedDrafter = listening("a:1", fault(invalid_field("max_length", "is too long")), says_opened=False)
    await verifier.pool.membership.attach("a:1", "")
    async with Running(verifier):
        await verifier.until(lambda: first.opened and verifier.state("a:1").sequences == 0)
        second = listening("a:1", greeting=greeting("newer"))
        await first.say(replaced())
        await verifier.until(lambda: first.ended)
        await verifier.until(lambda: second.open)


async def test_what_was_learned_of_the_old_model_is_not_the_new_ones(
    verifier: InProcessVerifier, listening: Any
) -> None:
    verifier.engine.drafts_awaited = True
    plain = await verifier.plain(order())
    first = listening("a:1", right([*PROMPT, *plain.token_ids]))
    attached = await verifier.pool.membership.attach("a:1", "")
    await verifier.generate(order())
    old_source = attached.source
    learned = verifier.engine.planner.models[old_source].next_probability()
    assert verifier.state("a:1").accepted_per_second > 0
    listening("a:1", greeting=greeting("newer"))
    await first.say(replaced())
    await verifier.until(lambda: verifier.state("a:1").model.model_id == "newer")
    assert verifier.state("a:1").accepted_per_second == 0
    assert verifier.state("a:1").accepted_tokens > 0, "counted since it was attached"
    await verifier.until(lambda: first.ended)
    verifier.engine.drafts_awaited = False
    await verifier.generate(order(max_tokens=4))
    sources = set(verifier.engine.planner.models) - {old_source}
    assert len(sources) == 1
    assert verifier.engine.planner.models[sources.pop()].next_probability() < learned
    await verifier.until(lambda: old_source not in verifier.engine.planner.models)


async def test_a_model_that_does_not_fit_is_not_followed(
    verifier: InProcessVerifier, listening: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafter_standing, "REPLACEMENT_SECONDS", 0.0)
    first = listening("a:1")
    await verifier.pool.membership.attach("a:1", "")
    async with Running(verifier):
        await verifier.until(lambda: first.open)
        listening("a:1", greeting=greeting("foreign", tokenizer_sha256="beef"))
        await first.say(replaced("foreign"))
        await verifier.until(lambda: "foreign" in verifier.state("a:1").last_error.message)
        state = verifier.state("a:1")
        assert (state.state, state.model.model_id, state.sequences) == (READY, "scripted", 1)
        assert first.open
        third = listening("a:1", greeting=greeting("third"))
        await first.say(replaced("third"))
        await verifier.until(lambda: third.open and first.ended)
    assert verifier.state("a:1").model.model_id == "third"


async def test_it_waits_for_a_swap_to_end(verifier: InProcessVerifier, listening: Any) -> None:
    first = listening("a:1")
    await verifier.pool.membership.attach("a:1", "")
    async with Running(verifier):
        await verifier.until(lambda: first.open)
        second = listening("b:1", says_opened=False)
        swapping = asyncio.create_task(verifier.pool.changes.swap("a:1", "b:1"))
        await verifier.until(lambda: second.opened)
        third = listening("b:1", greeting=greeting("newer"))
        await second.say(replaced())
        await second.say(opened(second.opened[-1]))
        assert (await swapping)[1] == 1
        await verifier.until(lambda: third.open and second.ended)
        assert verifier.state("b:1").model.model_id == "newer"


async def test_the_old_stream_breaks_meanwhile(verifier: InProcessVerifier, listening: Any) -> None:
    first = listening("a:1")
    await verifier.pool.membership.attach("a:1", "")
    async with Running(verifier):
        await verifier.until(lambda: first.open)
        second = listening("a:1", greeting=greeting("newer"))
        await first.say(replaced())
        for call in list(verifier.network._calls["a:1"]):
            await call.sever(StreamBroken.of(grpc.StatusCode.UNAVAILABLE, "connection reset by peer"))
        await verifier.until(lambda: verifier.state("a:1").model.model_id == "newer" and second.open)
        await verifier.until(lambda: len(second.streams) == 1 and verifier.state("a:1").sequences == 1)


async def test_real_models(verifier: InProcessVerifier, twin: InProcessDrafter, stranger: InProcessDrafter) -> None:
    """One real drafter takes over the address of another while requests run."""
    requests = [order([index + 3, 8], max_tokens=50, sampling=sampled()) for index in range(3)]
    alone = [await verifier.plain(request) for request in requests]
    await verifier.pool.membership.attach("stranger:1", "drafter")
    verifier.engine.hold(4)
    running = [asyncio.create_task(verifier.generate(request)) for request in requests]
    await verifier.until(lambda: verifier.state("drafter").sequences == 3)
    verifier.network.listen("stranger:1", twin.servicer.converse)
    old = verifier.pool.roster.named("drafter")
    verifier.pool.drafter_replaced(old, 0.0)
    await verifier.until(lambda: verifier.pool.roster.named("drafter") is not old)
    await verifier.until(lambda: old not in verifier.pool.roster.alive)
    verifier.engine.go_on()
    outputs = await asyncio.gather(*running)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in alone]
    assert all(each.finished.speculation.accepted_tokens > 0 for each in outputs)
    assert {source for output in outputs for source in output.sources} == {None, "drafter"}


async def replaced_model(verifier: InProcessVerifier, listening: Any, first: ScriptedDrafter) -> ScriptedDrafter:
    """Replaces a drafter's model while a request runs. Returns the new one, which has not caught up."""
    second: ScriptedDrafter = listening("a:1", greeting=greeting("newer"), says_opened=False)
    await first.say(replaced())
    await verifier.until(lambda: second.opened)
    return second


async def test_a_drafter_on_its_way_to_another_model_can_be_detached(
    verifier: InProcessVerifier, listening: Any
) -> None:
    first: ScriptedDrafter = listening("a:1")
    await verifier.pool.membership.attach("a:1", "me")
    async with Running(verifier):
        await verifier.until(lambda: first.open)
        second = await replaced_model(verifier, listening, first)
        detaching = asyncio.create_task(verifier.pool.changes.detach("me"))
        await second.say(opened(second.opened[-1]))
        described = await detaching
    assert described.model.model_id == "newer"
    assert verifier.pool.describe() == []


async def test_a_drafter_that_leaves_before_its_new_model_is_reached_is_removed(
    verifier: InProcessVerifier, listening: Any
) -> None:
    first: ScriptedDrafter = listening("a:1")
    register = verifier.pool.membership.register
    register("a:1", "me", leaving=False)
    await verifier.until(lambda: first.streams)
    second, reached, answers = ScriptedDrafter(greeting=greeting("newer")), asyncio.Event(), asyncio.Event()

    async def late(stream: Stream) -> None:
        reached.set()
        await answers.wait()
        await second.converse(stream)

    verifier.network.listen("a:1", late)
    await first.say(replaced())
    await reached.wait()
    register("a:1", "me", leaving=True)
    answers.set()
    await verifier.until(lambda: not verifier.pool.roster.alive)
    assert verifier.pool.describe() == []


async def test_a_swap_waits_for_a_drafter_that_is_to_take_over_with_a_new_model(
    verifier: InProcessVerifier, listening: Any
) -> None:
    second: ScriptedDrafter = listening("b:1")
    await verifier.pool.membership.attach("b:1", "")
    async with Running(verifier):
        await verifier.until(lambda: second.open)
        listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        third = listening("b:1", greeting=greeting("newer"), says_opened=False)
        await second.say(replaced())
        await verifier.until(lambda: third.opened)
        swapping = asyncio.create_task(verifier.pool.changes.swap("a:1", "b:1"))
        await asyncio.sleep(0)
        await third.say(opened(third.opened[-1]))
        drafter, _ = await swapping
        assert (drafter.name, [each.name for each in verifier.pool.describe()]) == ("b:1", ["b:1"])


async def test_a_swap_that_waits_for_a_new_model_may_be_called_twice(
    verifier: InProcessVerifier, listening: Any
) -> None:
    first: ScriptedDrafter = listening("a:1")
    await verifier.pool.membership.attach("a:1", "me")
    async with Running(verifier):
        await verifier.until(lambda: first.open)
        second = await replaced_model(verifier, listening, first)
        listening("b:1")
        calls = [asyncio.create_task(verifier.pool.changes.swap("me", "b:1", "mine")) for _ in range(2)]
        await asyncio.sleep(0)
        await second.say(opened(second.opened[-1]))
        assert [moved for _, moved in await asyncio.gather(*calls)] == [1, 1]


async def test_a_rollout_waits_for_a_new_model(verifier: InProcessVerifier, listening: Any) -> None:
    first: ScriptedDrafter = listening("a:1")
    await verifier.pool.membership.attach("a:1", "me")
    async with Running(verifier):
        await verifier.until(lambda: first.open)
        second = await replaced_model(verifier, listening, first)
        listening("b:1")
        starting = asyncio.create_task(verifier.pool.changes.start_rollout("me", "b:1", 0.5))
        await asyncio.sleep(0)
        await second.say(opened(second.opened[-1]))
        assert (await starting).old.name == "me"


async def test_the_end_of_a_rollout_waits_for_a_new_model(verifier: InProcessVerifier, listening: Any) -> None:
    first: ScriptedDrafter = listening("a:1")
    await verifier.pool.membership.attach("a:1", "me")
    async with Running(verifier):
        await verifier.until(lambda: first.open)
        listening("b:1")
        await verifier.pool.changes.start_rollout("me", "b:1", 0.1)
        second = await replaced_model(verifier, listening, first)
        calls = [asyncio.create_task(verifier.pool.changes.finish_rollout("b:1", promote=True)) for _ in range(2)]
        await asyncio.sleep(0)
        await second.say(opened(second.opened[-1]))
        assert [each.reason for each in await asyncio.gather(*calls)] == ["promoted"] * 2
        assert [each.name for each in verifier.pool.describe()] == ["b:1"]
