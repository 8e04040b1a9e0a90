"""A verifier and real drafters in one process: whichever drafter drafts, the tokens are those of plain decoding."""

import asyncio
from pathlib import Path

import pytest

from draftwire.v1.sampling_pb2 import SamplingParams
from draftwire.v1.speculation_pb2 import DraftPlanning, SpeculationOptions
from draftwire.v1.verifier_service_pb2 import FinishReason, GenerateRequest
from draftwire_core.runtime.errors import ServiceError
from tests.harness.models.tiny_checkpoint import CONTEXT, write_checkpoint
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.in_process_verifier import (
    PATIENCE,
    PROMPT,
    TOKENS,
    InProcessVerifier,
    Output,
    greedy,
    order,
    sampled,
)
from tests.harness.services.services import Services

SAMPLINGS = {"greedy": greedy(), "sampled": sampled(), "T 0.8": SamplingParams(temperature=0.8, seed=11)}


@pytest.mark.parametrize("name", SAMPLINGS)
async def test_drafters_change_no_token(
    verifier: InProcessVerifier, twin: InProcessDrafter, stranger: InProcessDrafter, name: str
) -> None:
    request = order(sampling=SAMPLINGS[name])
    plain = await verifier.generate(request)
    assert len(plain.token_ids) == TOKENS
    assert plain.finished.speculation.draft_tokens == 0
    for address in ("twin:1", "stranger:1"):
        await verifier.pool.membership.attach(address, "drafter")
        output = await verifier.generate(request)
        stats = output.finished.speculation
        assert (output.token_ids, output.text) == (plain.token_ids, plain.text)
        assert [each.name for each in stats.drafters] == ["drafter"]
        assert stats.draft_tokens > 0
        if address == "twin:1":
            assert stats.accepted_tokens == sum(source == "drafter" for source in output.sources) > 0
            assert stats.steps == TOKENS - stats.accepted_tokens
        await verifier.pool.changes.detach("drafter")


async def test_many_at_once_and_each_alone(
    verifier: InProcessVerifier, twin: InProcessDrafter, stranger: InProcessDrafter
) -> None:
    requests = [
        order([index + 3, 40, 2 * index + 5], max_tokens=16, sampling=sampling)
        for index, sampling in enumerate([*SAMPLINGS.values()] * 3)
    ]
    alone = [await verifier.plain(request) for request in requests]
    await verifier.pool.membership.attach("twin:1", "")
    await verifier.pool.membership.attach("stranger:1", "")
    together = await asyncio.gather(*(verifier.generate(request) for request in requests))
    assert [output.token_ids for output in together] == [output.token_ids for output in alone]
    used = {source for output in together for source in output.sources}
    assert "twin:1" in used
    assert {each.name for output in together for each in output.finished.speculation.drafters} == {
        "twin:1",
        "stranger:1",
    }, "requests are spread over the drafters"


async def test_swaps_within_a_request(
    verifier: InProcessVerifier, twin: InProcessDrafter, stranger: InProcessDrafter
) -> None:
    request = order(max_tokens=60, sampling=sampled())
    plain = await verifier.plain(request)
    await verifier.pool.membership.attach("twin:1", "twin")
    verifier.engine.hold(3)
    output, moved = Output(), 0
    at = "twin"
    async with asyncio.timeout(PATIENCE), verifier.running(request) as running:
        async for event in running.events():
            output.take(event)
            if event.WhichOneof("event") != "finished":
                new = {"twin": "stranger:1", "stranger:1": "twin:1", "twin:1": "stranger:1"}[at]
                moved += (await verifier.pool.changes.swap(at, new))[1]
                at = new
                verifier.engine.hold(3)
    assert output.token_ids == plain.token_ids
    assert moved >= 3
    assert [drafter.name for drafter in verifier.pool.describe()] == [at]


async def test_attach_and_detach_within_a_request(verifier: InProcessVerifier, twin: InProcessDrafter) -> None:
    request = order(max_tokens=60)
    plain = await verifier.plain(request)
    verifier.engine.hold(2)
    running = asyncio.create_task(verifier.generate(request))
    await verifier.until(lambda: verifier.verifier.status().running_sequences)
    await verifier.pool.membership.attach("twin:1", "")
    assert verifier.state("twin:1").sequences == 1
    verifier.engine.hold(4)
    await verifier.until(lambda: verifier.state("twin:1").accepted_tokens > 0)
    gone = await verifier.pool.changes.detach("twin:1")
    assert gone.accepted_tokens > 0
    assert verifier.pool.describe() == []
    verifier.engine.go_on()
    output = await running
    assert output.token_ids == plain.token_ids
    assert output.sources[-10:] == [None] * 10
    assert "twin:1" in output.sources


async def test_a_drafter_that_is_killed_within_a_request(verifier: InProcessVerifier, twin: InProcessDrafter) -> None:
    request = order(max_tokens=60, sampling=sampled())
    plain = await verifier.plain(request)
    await verifier.pool.membership.attach("twin:1", "")
    verifier.engine.hold(4)
    running = asyncio.create_task(verifier.generate(request))
    await verifier.until(lambda: verifier.state("twin:1").accepted_tokens > 0)
    await verifier.network.kill("twin:1")
    await verifier.until(lambda: verifier.state("twin:1").state == 4)
    assert verifier.state("twin:1").sequences == 0
    assert "connection" in verifier.state("twin:1").last_error.message
    verifier.engine.go_on()
    assert (await running).token_ids == plain.token_ids
    await verifier.until(lambda: twin.model.pool.used == 0)


async def test_a_drafter_that_comes_back_drafts_again(verifier: InProcessVerifier, twin: InProcessDrafter) -> None:
    request = order(max_tokens=50)
    plain = await verifier.plain(request)
    await verifier.pool.membership.attach("twin:1", "")
    verifier.engine.hold(3)
    running = asyncio.create_task(verifier.generate(request))
    await verifier.until(lambda: verifier.state("twin:1").sequences == 1)
    await verifier.network.kill("twin:1")
    await verifier.until(lambda: verifier.state("twin:1").state == 4)
    verifier.network.listen("twin:1", twin.servicer.converse)
    await verifier.until(lambda: verifier.state("twin:1").sequences == 1)
    assert verifier.state("twin:1").last_error.code == 0
    before = verifier.state("twin:1").accepted_tokens
    verifier.engine.go_on()
    assert (await running).token_ids == plain.token_ids
    assert verifier.state("twin:1").accepted_tokens > before


async def test_a_drafter_that_shuts_down_ends_its_conversations(
    verifier: InProcessVerifier, twin: InProcessDrafter
) -> None:
    request = order(max_tokens=60)
    plain = await verifier.plain(request)
    await verifier.pool.membership.attach("twin:1", "")
    verifier.engine.hold(4)
    running = asyncio.create_task(verifier.generate(request))
    await verifier.until(lambda: verifier.state("twin:1").accepted_tokens > 0)
    async with asyncio.timeout(PATIENCE):
        await twin.servicer.end_sessions()
    verifier.engine.go_on()
    assert (await running).token_ids == plain.token_ids
    await verifier.until(lambda: verifier.state("twin:1").last_error.message)


@pytest.mark.parametrize("steps", [0, 1, 5])
async def test_a_cancelled_request_frees_both_sides(
    verifier: InProcessVerifier, twin: InProcessDrafter, steps: int
) -> None:
    await verifier.pool.membership.attach("twin:1", "")
    verifier.engine.hold(steps)
    running = asyncio.create_task(verifier.generate(order(max_tokens=100)))
    await verifier.until(lambda: verifier.state("twin:1").sequences == 1)
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    assert verifier.state("twin:1").sequences == 0
    verifier.engine.go_on()
    await verifier.freed()
    while await twin.open_sequences():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def test_requests_beyond_the_engines_room_wait_and_are_drafted_for(
    services: Services,
    checkpoint: Path,
) -> None:
    async with (
        services.in_process_drafter(checkpoint) as drafter,
        services.in_process_verifier(checkpoint, max_sequences=2) as verifier,
    ):
        verifier.network.listen("twin:1", drafter.servicer.converse)
        verifier.engine.drafts_awaited = True
        requests = [order([index + 3, 8], max_tokens=12, sampling=sampled()) for index in range(5)]
        alone = [await verifier.plain(request) for request in requests]
        await verifier.pool.membership.attach("twin:1", "")
        together = await asyncio.gather(*(verifier.generate(request) for request in requests))
        assert [output.token_ids for output in together] == [output.token_ids for output in alone]
        assert all(output.finished.speculation.accepted_tokens > 0 for output in together)


async def test_another_tokenizer_is_refused_by_both_sides(
    services: Services, verifier: InProcessVerifier, tmp_path: Path
) -> None:
    foreign = write_checkpoint(tmp_path / "foreign", words=90)
    async with services.in_process_drafter(foreign) as drafter:
        verifier.network.listen("foreign:1", drafter.servicer.converse)
        with pytest.raises(ServiceError) as caught:
            await verifier.pool.membership.attach("foreign:1", "")
    error = caught.value
    assert (error.code.name, error.reason_name) == ("FAILED_PRECONDITION", "TOKENIZER_MISMATCH")
    assert "foreign" in error.message
    assert "target" in error.message
    assert verifier.verifier.model.info.tokenizer_sha256 in error.message
    assert verifier.pool.describe() == []


async def test_a_padded_vocabulary_is_the_same_tokenizer(
    services: Services, verifier: InProcessVerifier, tmp_path: Path
) -> None:
    padded = write_checkpoint(tmp_path / "padded", vocab_size=264)
    plain = await verifier.plain(order(sampling=sampled()))
    async with services.in_process_drafter(padded) as drafter:
        verifier.network.listen("padded:1", drafter.servicer.converse)
        verifier.engine.drafts_awaited = True
        await verifier.pool.membership.attach("padded:1", "")
        output = await verifier.generate(order(sampling=sampled()))
        assert output.token_ids == plain.token_ids
        assert output.finished.speculation.draft_tokens > 0
        assert verifier.state("padded:1").last_error.code == 0
        await verifier.pool.changes.detach("padded:1")


class TestOptions:
    async def test_a_request_may_name_its_drafter(
        self, verifier: InProcessVerifier, twin: InProcessDrafter, stranger: InProcessDrafter
    ) -> None:
        await verifier.pool.membership.attach("twin:1", "a")
        await verifier.pool.membership.attach("stranger:1", "b")
        for name in ("b", "a", "b"):
            output = await verifier.generate(order(max_tokens=8, speculation=SpeculationOptions(drafter=name)))
            assert [each.name for each in output.finished.speculation.drafters] == [name]

    async def test_at_most_so_many_draft_tokens_a_step(
        self, verifier: InProcessVerifier, twin: InProcessDrafter
    ) -> None:
        await verifier.pool.membership.attach("twin:1", "")
        output = await verifier.generate(order(speculation=SpeculationOptions(max_draft_tokens=1)))
        stats = output.finished.speculation
        assert 0 < stats.draft_tokens <= stats.steps

    async def test_all_that_is_drafted_whatever_it_is_worth(
        self, verifier: InProcessVerifier, stranger: InProcessDrafter
    ) -> None:
        always = SpeculationOptions(planning=DraftPlanning.DRAFT_PLANNING_ALWAYS)
        plain = await verifier.plain(order(sampling=sampled()))
        await verifier.pool.membership.attach("stranger:1", "a")
        output = await verifier.generate(order(sampling=sampled(), speculation=always))
        stats = output.finished.speculation
        assert output.token_ids == plain.token_ids
        assert stats.planning == DraftPlanning.DRAFT_PLANNING_ALWAYS
        assert stats.drafts > 1

    async def test_planning_makes_no_difference_without_speculation(self, verifier: InProcessVerifier) -> None:
        options = SpeculationOptions(enabled=False, planning=DraftPlanning.DRAFT_PLANNING_ALWAYS)
        output = await verifier.generate(order(speculation=options))
        assert output.finished.speculation.planning == DraftPlanning.DRAFT_PLANNING_AUTO

    @pytest.mark.parametrize("options", [SpeculationOptions(enabled=False), SpeculationOptions(max_draft_tokens=0)])
    async def test_none_at_all(
        self, verifier: InProcessVerifier, twin: InProcessDrafter, options: SpeculationOptions
    ) -> None:
        await verifier.pool.membership.attach("twin:1", "")
        output = await verifier.generate(order(speculation=options))
        assert output.finished.speculation.draft_tokens == 0
        assert not output.finished.speculation.drafters

    async def test_to_the_end_of_the_context(self, verifier: InProcessVerifier, twin: InProcessDrafter) -> None:
        prompt = [(7 * index) % 100 + 3 for index in range(CONTEXT - 20)]
        request = GenerateRequest(ignore_eos=True, sampling=greedy())
        request.token_ids.ids.extend(prompt)
        plain = await verifier.plain(request)
        await verifier.pool.membership.attach("twin:1", "")
        output = await verifier.generate(request)
        assert output.token_ids == plain.token_ids
        assert len(output.token_ids) == 20
        assert output.finished.finish_reason == FinishReason.FINISH_REASON_LENGTH

    async def test_the_end_of_the_sequence_within_a_tree(
        self, services: Services, checkpoint: Path, verifier: InProcessVerifier
    ) -> None:
        """Tokens after the end of the sequence are neither reported nor counted, whichever drafter drafted them."""
        hot = SamplingParams(temperature=4.0, seed=6)
        request = order(max_tokens=60, sampling=hot, ignore_eos=False)
        plain = await verifier.plain(request)
        assert plain.finished.finish_reason == FinishReason.FINISH_REASON_STOP, "choose another seed"
        async with services.in_process_drafter(checkpoint) as drafter:
            verifier.network.listen("twin:1", drafter.servicer.converse)
            await verifier.pool.membership.attach("twin:1", "")
            output = await verifier.generate(request)
            assert output.token_ids == plain.token_ids
            assert output.finished.usage.completion_tokens == len(output.token_ids)
            await verifier.pool.changes.detach("twin:1")

    async def test_a_stop_string_ends_the_same_tokens(
        self, verifier: InProcessVerifier, twin: InProcessDrafter
    ) -> None:
        whole = await verifier.plain(order(max_tokens=60, sampling=sampled()))
        stop = whole.text[len(whole.text) // 2 :][:6]
        request = order(max_tokens=60, sampling=sampled(), stop=[stop])
        plain = await verifier.plain(request)
        assert plain.finished.stop == stop
        await verifier.pool.membership.attach("twin:1", "")
        output = await verifier.generate(request)
        assert (output.token_ids, output.text) == (plain.token_ids, plain.text)
        assert output.finished.finish_reason == FinishReason.FINISH_REASON_STOP

    @pytest.mark.parametrize("known", [1, 11, TOKENS - 1])
    async def test_a_resumed_request_goes_on_as_it_would_have(
        self, verifier: InProcessVerifier, twin: InProcessDrafter, known: int
    ) -> None:
        whole = await verifier.plain(order(sampling=sampled()))
        await verifier.pool.membership.attach("twin:1", "")
        rest = await verifier.generate(order(sampling=sampled(), resume_token_ids=whole.token_ids[:known]))
        assert [*whole.token_ids[:known], *rest.token_ids] == whole.token_ids
        assert rest.finished.usage.completion_tokens == TOKENS

    async def test_a_resumed_request_that_was_complete(self, verifier: InProcessVerifier) -> None:
        whole = await verifier.plain(order(max_tokens=5))
        rest = await verifier.generate(order(max_tokens=5, resume_token_ids=whole.token_ids))
        assert rest.token_ids == []
        assert rest.finished.usage.completion_tokens == 5


async def test_the_seed_is_reported(verifier: InProcessVerifier) -> None:
    first = await verifier.generate(order(sampling=SamplingParams(temperature=2.0)))
    again = await verifier.generate(order(sampling=SamplingParams(temperature=2.0, seed=first.started.seed)))
    assert again.token_ids == first.token_ids
    assert first.started.prompt_tokens == len(PROMPT)
    assert not first.started.prompt_token_ids
