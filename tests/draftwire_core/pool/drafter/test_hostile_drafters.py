"""Malicious drafters that obey the letter of the protocol: which requests they get, and when they are suspended."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from draftwire.v1 import drafter_service_pb2 as pb
from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from draftwire_core.pool.standing import standings
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.rpc.message_stream import StreamBroken
from tests.harness.services.in_process_verifier import PROMPT, InProcessVerifier, order
from tests.harness.services.services import Services
from tests.harness.stand_ins.drafter_answers import greeting, replaced
from tests.harness.stand_ins.scripted_drafter import Opening, ScriptedDrafter, batch, right
from tests.harness.verifier.running import Running
from tests.harness.verifier.simulated_clocks import SimulatedClocks

READY = DrafterState.DRAFTER_STATE_READY
SUSPENDED = DrafterState.DRAFTER_STATE_SUSPENDED


@pytest.fixture
def time() -> SimulatedClocks:
    return SimulatedClocks()


@pytest.fixture
async def verifier(services: Services, checkpoint: Path, time: SimulatedClocks) -> AsyncIterator[InProcessVerifier]:
    """A verifier whose clock stands still."""
    async with services.in_process_verifier(checkpoint, max_tree_nodes=64, clocks=time.clocks) as made:
        made.pool.drafting._choice._rng.random = lambda: 1.0  # no exploration
        made.engine.drafts_awaited = True
        yield made


class Chameleon:
    """Drafts useless tokens and claims again and again that its model was replaced."""

    def __init__(self, every: int) -> None:
        """every: number of openings after which its model is replaced."""
        self.opened: list[pb.OpenSequence] = []
        self._every = every
        self.models = 0

    async def converse(self, stream: Any) -> None:
        said = ScriptedDrafter(greeting=greeting(f"model {self.models}"))
        said.opened = self.opened
        said.answer = self._rubbish
        await said.converse(stream)

    def _rubbish(self, opening: Opening) -> Sequence[pb.DraftResponse]:
        rubbish = [batch(opening.proposal([199]))]
        if len(self.opened) % self._every == 0 and len(opening.tokens) == self.opened[-1].committed_length:
            self.models += 1
            rubbish.append(replaced(f"model {self.models}"))
        return rubbish


async def test_one_that_is_always_new_does_not_get_all_requests(
    verifier: InProcessVerifier, listening: Callable[..., ScriptedDrafter], time: SimulatedClocks
) -> None:
    plain = await verifier.plain(order(max_tokens=12))
    honest = listening("honest:1", right([*PROMPT, *plain.token_ids]))
    chameleon = Chameleon(every=2)
    verifier.network.listen("liar:1", chameleon.converse)
    await verifier.pool.membership.attach("honest:1", "")
    await verifier.pool.membership.attach("liar:1", "")
    for _ in range(24):
        output = await verifier.generate(order(max_tokens=12))
        assert output.token_ids == plain.token_ids
        await verifier.until(lambda: not verifier.pool._replacements._following)
        time.now += 6  # respects the minimum time between model changes
    assert chameleon.models > 1
    assert len(honest.opened) >= 12
    assert verifier.state("honest:1").accepted_tokens > 10 * verifier.state("liar:1").accepted_tokens
    requests = {each.sequence_id for each in chameleon.opened}
    assert len(requests) <= 12, "four a minute at most, for being new"


async def test_one_that_says_so_all_the_time_is_suspended(
    verifier: InProcessVerifier, listening: Callable[..., ScriptedDrafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standings, "REPLACEMENT_SECONDS", 0.1)  # each excess model is followed that much later
    plain = await verifier.plain(order())
    liar = listening("liar:1", lambda opening: [batch(opening.proposal([199])), replaced()])
    await verifier.pool.membership.attach("liar:1", "")
    assert (await verifier.generate(order())).token_ids == plain.token_ids
    await verifier.until(lambda: verifier.state("liar:1").state == SUSPENDED)
    assert StreamBroken(verifier.state("liar:1").last_error).reason_name == "CREDIT_EXCEEDED"
    assert "replaces its model more than once" in verifier.state("liar:1").last_error.message
    assert len(liar.hellos) <= 4


async def test_one_that_comes_back_as_another_all_the_time_is_suspended(
    verifier: InProcessVerifier, listening: Callable[..., ScriptedDrafter]
) -> None:
    models = iter(range(100))

    class Returning(ScriptedDrafter):
        async def converse(self, stream: Any) -> None:
            self.greeting = greeting(f"model {next(models)}")
            await super().converse(stream)

    def leave(opening: Opening) -> Sequence[pb.DraftResponse]:
        raise StreamBroken.of(grpc.StatusCode.UNAVAILABLE, "gone")

    liar = Returning(leave)
    verifier.network.listen("liar:1", liar.converse)
    await verifier.pool.membership.attach("liar:1", "")
    plain = await verifier.plain(order(max_tokens=60))
    async with asyncio.timeout(60):
        while verifier.state("liar:1").state != SUSPENDED:
            assert (await verifier.generate(order(max_tokens=60))).token_ids == plain.token_ids
    assert len(liar.hellos) <= 8


async def test_a_suspended_address_stays_so_when_it_is_attached_anew(
    verifier: InProcessVerifier, listening: Callable[..., ScriptedDrafter]
) -> None:
    liar = listening("liar:1", lambda opening: [pb.DraftResponse(pong=pb.Pong(number=7))])
    await verifier.pool.membership.attach("liar:1", "")
    async with asyncio.timeout(60):
        while verifier.state("liar:1").state != SUSPENDED:
            await verifier.generate(order())
    assert len(liar.hellos) == 3, "an unasked pong is a fault"
    await verifier.pool.changes.detach("liar:1")
    with pytest.raises(ServiceError, match="suspended for 5 s because it broke the protocol"):
        await verifier.pool.membership.attach("liar:1", "another name")
    assert len(liar.hellos) == 3


class TestEcho:
    async def test_what_is_committed_is_not_said_for_ever(
        self, verifier: InProcessVerifier, listening: Callable[..., ScriptedDrafter]
    ) -> None:
        """Proposes the same committed token again and again, with the committed length of the opening."""

        def echo(opening: Opening) -> Sequence[pb.DraftResponse]:
            begun = liar.opened[-1].committed_length
            return [
                batch(opening.proposal([opening.tokens[begun]], committed_length=begun))
                for _ in range(63 if len(opening.tokens) > begun else 0)
            ]

        verifier.engine.drafts_awaited = False
        plain = await verifier.plain(order(max_tokens=60))
        liar = listening("liar:1", echo)
        await verifier.pool.membership.attach("liar:1", "")
        assert (await verifier.generate(order(max_tokens=60))).token_ids == plain.token_ids
        await verifier.until(lambda: liar.errors)
        assert StreamBroken(liar.errors[0].status).reason_name == "CREDIT_EXCEEDED"
        assert "65 nodes of committed tokens" in liar.errors[0].status.message


class TestAccount:
    @pytest.fixture(autouse=True)
    def tireless(self) -> None:
        """Not here: drafters that bring nothing are paused."""

    @pytest.mark.parametrize(
        "said",
        [
            lambda opening: batch(opening.proposal([3], sequence_id=77)),
            lambda opening: batch(opening.proposal([3], epoch=0)),
            lambda opening: batch(),
            lambda opening: pb.DraftResponse(opened=pb.SequenceOpened(sequence_id=opening.sequence_id)),
            lambda opening: pb.DraftResponse(),
        ],
        ids=["foreign", "late", "empty", "opened", "unknown"],
    )
    async def test_reading_is_paid_for_by_who_is_read(
        self,
        verifier: InProcessVerifier,
        time: SimulatedClocks,
        listening: Callable[..., ScriptedDrafter],
        said: Callable[[Opening], pb.DraftResponse],
    ) -> None:
        """A step takes 50 ms. Reading the answer to a verdict takes half of that, whether or not it is useful."""
        verifier.engine.drafts_awaited = False
        time.reading = 0.5e-3
        plain = await verifier.plain(order(max_tokens=60))
        quiet, liar = listening("quiet:1"), listening("liar:1", lambda opening: [said(opening)] * 42)
        told = {}
        for drafter, address in ((quiet, "quiet:1"), (liar, "liar:1")):
            await verifier.pool.membership.attach(address, "")
            assert (await verifier.generate(order(max_tokens=60))).token_ids == plain.token_ids
            told[address] = len(drafter.credits)
            await verifier.pool.changes.detach(address)
        assert told["quiet:1"] > 40
        assert told["liar:1"] < 15

    async def test_one_that_is_attached_anew_has_the_account_it_had(
        self, verifier: InProcessVerifier, listening: Callable[..., ScriptedDrafter]
    ) -> None:
        verifier.engine.drafts_awaited = False
        drafter = listening("a:1")
        attached = await verifier.pool.membership.attach("a:1", "")
        attached.pause_policy.price(0.05, 0.0)
        while not attached.pause_policy.paused:
            attached.pause_policy.charge(1e-3)
            attached.pause_policy.stepped(1)
        await verifier.pool.changes.detach("a:1")
        verifier.pool.membership.register("a:1", "me", leaving=False)
        await verifier.until(lambda: verifier.state("me") is not None and verifier.state("me").state == READY)
        assert verifier.state("me").resting
        said: list[bool] = []
        pause = verifier.engine.pause
        verifier.engine.pause = lambda source, *, paused: said.append(paused) or pause(source, paused=paused)
        await verifier.generate(order(max_tokens=12))
        assert not drafter.credits, "it is told of nothing"
        assert said == [True], "and not waited for"


class TestSpeed:
    @pytest.mark.parametrize("claimed", [50e-6, math.nan])
    @pytest.mark.parametrize("messages", [1, 3])
    async def test_a_step_is_no_shorter_than_it_looks_from_here(
        self,
        verifier: InProcessVerifier,
        time: SimulatedClocks,
        listening: Callable[..., ScriptedDrafter],
        messages: int,
        claimed: float,
    ) -> None:
        """Three right tokens arrive 16 ms after a verdict, and the drafter claims that the last one took 50 µs."""
        plain = await verifier.plain(order())
        text = [*PROMPT, *plain.token_ids]

        def quick(opening: Opening) -> Sequence[pb.DraftResponse]:
            known, answers = len(opening.tokens), []
            for number in range(messages):
                tokens = text[known + number : known + (number + 1 if messages > 1 else 3)]
                if tokens:
                    first = opening.next_id
                    proposal = opening.proposal(tokens)
                    proposal.parent_ids[0] = first - 1 if number else 0
                    answers.append(batch(proposal, step_seconds=50e-6 if number else claimed))
            time.now += 0.016
            return answers

        listening("quick:1", quick)
        await verifier.pool.membership.attach("quick:1", "")
        began = time.now
        output = await verifier.generate(order())
        assert output.token_ids == plain.token_ids
        accepted = verifier.state("quick:1").accepted_tokens
        assert accepted > 10
        seen = accepted / (time.now - began)
        assert verifier.state("quick:1").accepted_per_second == pytest.approx(seen, rel=0.1)

    async def test_time_in_which_nothing_was_asked_for_is_not_a_drafters(
        self, verifier: InProcessVerifier, time: SimulatedClocks, listening: Callable[..., ScriptedDrafter]
    ) -> None:
        plain = await verifier.plain(order())
        answer = right([*PROMPT, *plain.token_ids])

        def honest(opening: Opening) -> Sequence[pb.DraftResponse]:
            time.now += 0.001  # the step time that it reports
            return answer(opening)

        listening("honest:1", honest)
        await verifier.pool.membership.attach("honest:1", "")
        for _ in range(4):
            time.now += 5  # no requests meanwhile
            await verifier.generate(order())
        state = verifier.state("honest:1")
        assert state.accepted_per_second > 1000


class TestHonest:
    async def test_a_new_model_is_followed_at_once_and_drafts(
        self, verifier: InProcessVerifier, time: SimulatedClocks, listening: Callable[..., ScriptedDrafter]
    ) -> None:
        first = listening("a:1", lambda opening: [batch(opening.proposal([199]))])
        other = listening("b:1", lambda opening: [batch(opening.proposal([199]))])
        await verifier.pool.membership.attach("a:1", "me")
        await verifier.pool.membership.attach("b:1", "")
        for _ in range(10):
            await verifier.generate(order(max_tokens=4))
        time.now += 61  # immediate trials of a new model are a minute apart
        plain = await verifier.plain(order())
        text = [*PROMPT, *plain.token_ids]
        async with Running(verifier):
            second = listening("a:1", right(text), greeting=greeting("newer"))
            await first.say(replaced())
            await verifier.until(lambda: verifier.state("me").model.model_id == "newer")
        opened, elsewhere = len(second.opened), len(other.opened)
        for _ in range(6):
            output = await verifier.generate(order())
            assert output.token_ids == plain.token_ids
        assert len(second.opened) >= opened + 6
        assert len(other.opened) == elsewhere

    async def test_two_models_within_seconds_are_followed_one_after_the_other(
        self,
        verifier: InProcessVerifier,
        listening: Callable[..., ScriptedDrafter],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        first = listening("a:1")
        await verifier.pool.membership.attach("a:1", "me")
        second = listening("a:1", greeting=greeting("second"))
        await first.say(replaced())
        await verifier.until(lambda: verifier.state("me").model.model_id == "second")
        delays: list[float] = []
        begin = verifier.pool._replacements.begin
        monkeypatch.setattr(
            verifier.pool._replacements, "begin", lambda drafter, delay: delays.append(delay) or begin(drafter, 0.0)
        )
        listening("a:1", greeting=greeting("third"))
        await second.say(replaced())
        await verifier.until(lambda: verifier.state("me").model.model_id == "third")
        assert delays == [5.0]
        assert verifier.state("me").state == READY
