"""The drafters that a request gets: by labels, by number, by the worth of their time."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from draftwire.v1 import drafter_pool_service_pb2 as pb
from draftwire.v1.model_info_pb2 import Limits
from draftwire.v1.speculation_pb2 import SpeculationOptions
from draftwire_core.engine.tree.proposal import ProposalError, ProposalFault
from draftwire_core.pool.drafter.proposal_sink import RefusedProposal
from draftwire_core.pool.servicer import DrafterPoolServicer
from draftwire_core.runtime.errors import ServiceError, invalid_field
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.in_process_verifier import (
    PROMPT,
    InProcessVerifier,
    order,
    sampled,
)
from tests.harness.services.services import Services
from tests.harness.stand_ins.drafter_answers import fault, wrong_batch
from tests.harness.stand_ins.scripted_drafter import ScriptedDrafter, hello, right
from tests.harness.verifier.running import Running, failure

CODE = SpeculationOptions(labels={"domain": "code"})


class TestLabels:
    async def test_only_drafters_that_carry_all(self, verifier: InProcessVerifier, listening: Any) -> None:
        prose, code, both = (listening(address) for address in ("prose:1", "code:1", "both:1"))
        await verifier.pool.membership.attach("prose:1", "", {"domain": "prose"})
        await verifier.pool.membership.attach("code:1", "", {"domain": "code"})
        await verifier.pool.membership.attach("both:1", "", {"domain": "code", "size": "small"})
        asked = {"domain": "code", "size": "small"}
        async with Running(verifier, speculation=SpeculationOptions(labels=asked)):
            await verifier.until(lambda: both.open)
            await verifier.network.kill("both:1")
            await verifier.until(lambda: verifier.state("both:1").sequences == 0)
        assert not prose.opened
        assert not code.opened

    async def test_plainly_until_one_is_there(self, verifier: InProcessVerifier, listening: Any) -> None:
        prose = listening("prose:1")
        await verifier.pool.membership.attach("prose:1", "")
        async with Running(verifier, speculation=CODE):
            assert not prose.opened
            code = listening("code:1")
            await verifier.pool.membership.attach("code:1", "", {"domain": "code"})
            await verifier.until(lambda: code.open)

    async def test_a_swap_takes_a_request_only_where_it_may_go(
        self, verifier: InProcessVerifier, listening: Any
    ) -> None:
        first, second, third = (listening(address) for address in ("a:1", "b:1", "c:1"))
        await verifier.pool.membership.attach("a:1", "", {"domain": "code"})
        await verifier.pool.membership.attach("b:1", "")
        async with Running(verifier, speculation=CODE):
            await verifier.until(lambda: first.open)
            await verifier.pool.membership.attach("c:1", "", {"domain": "code"})
            assert (await verifier.pool.changes.swap("a:1", "b:1"))[1] == 0
            await verifier.until(lambda: third.open)
        assert not second.opened

    async def test_a_drafter_that_loses_a_label_loses_the_requests_that_ask_for_it(
        self, verifier: InProcessVerifier, listening: Any
    ) -> None:
        listening("a:1")
        await verifier.pool.membership.attach("a:1", "", {"domain": "code"})
        async with Running(verifier, speculation=CODE):
            assert verifier.state("a:1").sequences == 1
            await verifier.pool.membership.attach("a:1", "", {"domain": "prose"})
            assert verifier.state("a:1").sequences == 0

    async def test_new_labels_replace_old_ones_and_none_change_nothing(
        self, verifier: InProcessVerifier, listening: Any
    ) -> None:
        drafter = listening("a:1")
        servicer = DrafterPoolServicer(verifier.pool)
        await servicer.AttachDrafter(pb.AttachDrafterRequest(address="a:1", labels={"domain": "prose"}), None)
        async with Running(verifier, speculation=CODE):
            assert not drafter.opened
            answer = await servicer.AttachDrafter(
                pb.AttachDrafterRequest(address="a:1", labels={"domain": "code"}), None
            )
            assert dict(answer.drafter.labels) == {"domain": "code"}
            await verifier.until(lambda: drafter.open)
        await servicer.AttachDrafter(pb.AttachDrafterRequest(address="a:1"), None)
        await servicer.RegisterDrafter(pb.RegisterDrafterRequest(address="a:1"), None)
        assert dict(verifier.state("a:1").labels) == {"domain": "code"}

    async def test_one_that_announces_itself(self, verifier: InProcessVerifier, listening: Any) -> None:
        listening("a:1")
        servicer = DrafterPoolServicer(verifier.pool)
        await servicer.RegisterDrafter(pb.RegisterDrafterRequest(address="a:1", labels={"domain": "code"}), None)
        assert dict(verifier.state("a:1").labels) == {"domain": "code"}

    @pytest.mark.parametrize(
        "labels", [{str(index): "x" for index in range(17)}, {"": "x"}, {"k" * 65: "x"}, {"k": "x" * 257}]
    )
    async def test_too_much(self, verifier: InProcessVerifier, labels: dict[str, str]) -> None:
        servicer = DrafterPoolServicer(verifier.pool)
        for call in (
            servicer.AttachDrafter(pb.AttachDrafterRequest(address="a:1", labels=labels), None),
            servicer.RegisterDrafter(pb.RegisterDrafterRequest(address="a:1", labels=labels), None),
            verifier.generate(order(speculation=SpeculationOptions(labels=labels))),
        ):
            assert await failure(call) == ("INVALID_ARGUMENT", "INVALID_FIELD")


class TestRoom:
    @pytest.mark.parametrize("refuses", ["drafter", "verifier"])
    async def test_that_of_a_refused_request_is_given_to_one_that_waits(
        self, verifier: InProcessVerifier, listening: Any, refuses: str
    ) -> None:
        limits = Limits(max_sequences=1, max_tree_nodes=64, max_message_bytes=1 << 20, max_sequence_tokens=256)
        drafter: ScriptedDrafter = listening("a:1", greeting=hello(limits=limits))
        attached = await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier):
            await verifier.until(lambda: drafter.open)
            waiting = asyncio.create_task(verifier.generate(order([9, 8])))
            await verifier.until(lambda: len(verifier.pool.drafting._requests) == 2)
            [first] = drafter.opened
            if refuses == "drafter":
                refusal = fault(invalid_field("max_length", "is too long"))
                await drafter.say(*refusal(drafter.open[first.sequence_id]))
            else:
                error = ProposalError(ProposalFault.MALFORMED, "token_ids", "are none")
                verifier.pool.refuse(RefusedProposal(first.sequence_id, first.epoch, attached.source, error))
            await verifier.until(lambda: len(drafter.opened) == 2)
        await waiting


class TestByWorth:
    async def test_the_better_one_gets_the_requests(self, verifier: InProcessVerifier, listening: Any) -> None:
        verifier.pool.drafting._choice._rng.random = lambda: 1.0  # no exploration
        verifier.engine.drafts_awaited = True
        plain = await verifier.plain(order())
        text = [*PROMPT, *plain.token_ids]
        wrong = [(token + 1) % 200 for token in text]
        good = listening("good:1", right(text))
        bad = listening("bad:1", lambda opening: [wrong_batch(opening, wrong)])
        await verifier.pool.membership.attach("bad:1", "")
        await verifier.pool.membership.attach("good:1", "")
        outputs = [await verifier.generate(order()) for _ in range(14)]
        assert all(output.token_ids == plain.token_ids for output in outputs)
        assert len(bad.opened) <= 4, "each is tried; then the choice is clear"
        assert len(good.opened) >= 10
        assert verifier.state("good:1").accepted_per_second > verifier.state("bad:1").accepted_per_second


class TestSeveralAtOnce:
    async def test_none_is_no_number(self, verifier: InProcessVerifier) -> None:
        with pytest.raises(ServiceError) as caught:
            await verifier.generate(order(speculation=SpeculationOptions(drafters=0)))
        assert [violation.field for violation in caught.value.field_violations] == ["speculation.drafters"]

    async def test_so_many_draft_and_a_lost_one_is_replaced(self, verifier: InProcessVerifier, listening: Any) -> None:
        drafters: dict[str, ScriptedDrafter] = {f"a:{index}": listening(f"a:{index}") for index in (1, 2, 3)}
        for address in drafters:
            await verifier.pool.membership.attach(address, "")
        async with Running(verifier, speculation=SpeculationOptions(drafters=2)):
            await verifier.until(lambda: sum(bool(each.open) for each in drafters.values()) == 2)
            lost = next(address for address, each in drafters.items() if each.open)
            await verifier.network.kill(lost)
            rest = [each for address, each in drafters.items() if address != lost]
            await verifier.until(lambda: all(each.open for each in rest))

    async def test_more_than_there_are(self, verifier: InProcessVerifier, listening: Any) -> None:
        first = listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier, speculation=SpeculationOptions(drafters=5)):
            await verifier.until(lambda: first.open)
            second = listening("b:1")
            await verifier.pool.membership.attach("b:1", "")
            await verifier.until(lambda: second.open)

    async def test_one_that_is_named_is_alone(self, verifier: InProcessVerifier, listening: Any) -> None:
        first, second = listening("a:1"), listening("b:1")
        await verifier.pool.membership.attach("a:1", "")
        await verifier.pool.membership.attach("b:1", "")
        async with Running(verifier, speculation=SpeculationOptions(drafter="b:1", drafters=2)):
            await verifier.until(lambda: second.open)
        assert not first.opened

    async def test_by_their_names(self, verifier: InProcessVerifier, listening: Any) -> None:
        first, second, third = (listening(address) for address in ("a:1", "b:1", "c:1"))
        for address in ("a:1", "b:1", "c:1", "local:ngram"):
            await verifier.pool.membership.attach(address, "")
        named = SpeculationOptions(drafter_names=["a:1", "c:1", "local:ngram"])
        async with Running(verifier, speculation=named):
            await verifier.until(lambda: first.open and third.open)
            assert verifier.state("local:ngram").sequences == 1
            await verifier.network.kill("a:1")
            await verifier.until(lambda: verifier.state("a:1").sequences == 0)
        assert not second.opened, "nobody takes the place of one that is named"

    async def test_a_swap_changes_one_of_the_names(self, verifier: InProcessVerifier, listening: Any) -> None:
        for address in ("a:1", "b:1", "c:1"):
            listening(address)
            await verifier.pool.membership.attach(address, "")
        async with Running(verifier, speculation=SpeculationOptions(drafter_names=["a:1", "b:1"])):
            await verifier.until(lambda: verifier.state("a:1").sequences == verifier.state("b:1").sequences == 1)
            assert (await verifier.pool.changes.swap("a:1", "c:1"))[1] == 1
            assert (verifier.state("b:1").sequences, verifier.state("c:1").sequences) == (1, 1)
            assert (await verifier.pool.changes.swap("c:1", "b:1"))[1] == 1
            assert verifier.state("b:1").sequences == 1

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            (SpeculationOptions(drafter_names=["nobody"]), ("NOT_FOUND", "DRAFTER_NOT_FOUND")),
            (SpeculationOptions(drafter_names=["a", "a"]), ("INVALID_ARGUMENT", "INVALID_FIELD")),
            (SpeculationOptions(drafter_names=map(str, range(17))), ("INVALID_ARGUMENT", "INVALID_FIELD")),
            (SpeculationOptions(drafter_names=["a"], drafter="b"), ("INVALID_ARGUMENT", "INVALID_FIELD")),
        ],
    )
    async def test_bad_names(self, verifier: InProcessVerifier, options: Any, reason: tuple[str, str]) -> None:
        assert await failure(verifier.generate(order(speculation=options))) == reason

    async def test_swapping_one_for_the_other_leaves_a_place(self, verifier: InProcessVerifier, listening: Any) -> None:
        first, second, third = (listening(address) for address in ("a:1", "b:1", "c:1"))
        await verifier.pool.membership.attach("a:1", "")
        await verifier.pool.membership.attach("b:1", "")
        async with Running(verifier, speculation=SpeculationOptions(drafters=2)):
            await verifier.until(lambda: first.open and second.open)
            await verifier.pool.membership.attach("c:1", "")
            assert (await verifier.pool.changes.swap("a:1", "b:1"))[1] == 1
            await verifier.until(lambda: third.open and second.open)
            assert len(second.opened) == 1, "it had the sequence already"

    async def test_real_drafters_into_one_tree(
        self,
        services: Services,
        checkpoint: Path,
        twin: InProcessDrafter,
        stranger: InProcessDrafter,
        verifier: InProcessVerifier,
    ) -> None:
        async with services.in_process_verifier(checkpoint, drafters_per_request=2) as hedging:
            hedging.engine.drafts_awaited = True
            requests = [order([index + 3, 40, 5], max_tokens=30, sampling=sampled()) for index in range(4)]
            alone = [await hedging.plain(request) for request in requests]
            for address in ("stranger:1", "twin:1"):
                hedging.network.listen(address, verifier.network._handlers[address])
                await hedging.pool.membership.attach(address, "")
            outputs = await asyncio.gather(*(hedging.generate(request) for request in requests))
            assert [output.token_ids for output in outputs] == [output.token_ids for output in alone]
            assert all(output.finished.speculation.accepted_tokens > 0 for output in outputs)
            assert hedging.state("twin:1").draft_tokens > 0
            # The planner decides whether a stranger's node is ever verified; it did draft.
            assert hedging.state("stranger:1").step_time.ToNanoseconds() > 0
        await verifier.until(lambda: twin.model.pool.used == stranger.model.pool.used == 0)
