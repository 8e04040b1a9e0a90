"""A drafter with another tokenizer, in conversation with a verifier."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from draftwire.v1.sampling_pb2 import SamplingParams
from draftwire_core.runtime.errors import ServiceError
from tests.harness.models.byte_tokenizers import TEXT, backend, write_byte_checkpoint
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.in_process_verifier import (
    PATIENCE,
    InProcessVerifier,
    Output,
    greedy,
    order,
)
from tests.harness.services.services import Services

SAMPLINGS = {"greedy": greedy(), "T 0.8": SamplingParams(temperature=0.8, seed=11)}
PROMPT = backend("target").encode(TEXT[0]).ids


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_checkpoint(tmp_path_factory.mktemp("target"), "target")


@pytest.fixture
async def verifier(services: Services, target: Path) -> AsyncIterator[InProcessVerifier]:
    async with services.in_process_verifier(target) as made:
        yield made


@pytest.fixture(scope="module", params=["draft", "fallback"])
def checkpoint(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A draft model with another tokenizer."""
    return write_byte_checkpoint(tmp_path_factory.mktemp("draft"), request.param)


@pytest.fixture
async def translating(
    services: Services, verifier: InProcessVerifier, target: Path, checkpoint: Path
) -> AsyncIterator[InProcessDrafter]:
    """A drafter with another tokenizer, at `translating`."""
    async with services.in_process_drafter(checkpoint, target_tokenizer=str(target)) as drafter:
        verifier.network.listen("translating:1", drafter.servicer.converse)
        verifier.engine.drafts_awaited = True
        yield drafter
        await verifier.until(lambda: drafter.model.pool.used == 0)


@pytest.mark.parametrize("name", SAMPLINGS)
async def test_it_changes_no_token(verifier: InProcessVerifier, translating: InProcessDrafter, name: str) -> None:
    """A random target generates arbitrary bytes, including parts of characters."""
    request = order(PROMPT, max_tokens=24, sampling=SAMPLINGS[name])
    plain = await verifier.plain(request)
    await verifier.pool.membership.attach("translating:1", "drafter")
    output = await verifier.generate(request)
    assert (output.token_ids, output.text) == (plain.token_ids, plain.text)
    assert output.finished.speculation.draft_tokens > 0
    together = await asyncio.gather(*(verifier.generate(request) for _ in range(2)))
    assert [each.token_ids for each in together] == [plain.token_ids] * 2


async def test_swaps_between_tokenizers_within_a_request(
    services: Services, verifier: InProcessVerifier, translating: InProcessDrafter, target: Path
) -> None:
    await check_swaps(services, verifier, target, "T 0.8")


@pytest.mark.slow
class TestGreedy:
    async def test_swaps_between_tokenizers_within_a_request(
        self, services: Services, verifier: InProcessVerifier, translating: InProcessDrafter, target: Path
    ) -> None:
        await check_swaps(services, verifier, target, "greedy")


async def check_swaps(services: Services, verifier: InProcessVerifier, target: Path, name: str) -> None:
    """The tokens are those of plain decoding while drafters with either tokenizer take turns."""
    request = order(PROMPT, max_tokens=40, sampling=SAMPLINGS[name])
    plain = await verifier.plain(request)
    async with services.in_process_drafter(target) as twin:
        verifier.network.listen("twin:1", twin.servicer.converse)
        await verifier.pool.membership.attach("twin:1", "")
        verifier.engine.hold(3)
        output, moved, at = Output(), 0, "twin:1"
        async with asyncio.timeout(PATIENCE), verifier.running(request) as running:
            async for event in running.events():
                output.take(event)
                if event.WhichOneof("event") != "finished":
                    new = {"twin:1": "translating:1", "translating:1": "twin:1"}[at]
                    moved += (await verifier.pool.changes.swap(at, new))[1]
                    at = new
                    verifier.engine.hold(3)
        assert output.token_ids == plain.token_ids
        assert moved >= 3
        await verifier.until(lambda: twin.model.pool.used == 0)


async def test_a_request_that_is_resumed_goes_on_as_it_was(
    verifier: InProcessVerifier, translating: InProcessDrafter
) -> None:
    request = order(PROMPT, max_tokens=20, sampling=SAMPLINGS["T 0.8"])
    plain = await verifier.plain(request)
    await verifier.pool.membership.attach("translating:1", "")
    for known in (1, 11):
        resumed = order(
            PROMPT,
            max_tokens=20,
            sampling=SAMPLINGS["T 0.8"],
            resume_token_ids=plain.token_ids[:known],
        )
        output = await verifier.generate(resumed)
        assert output.token_ids == plain.token_ids[known:]


async def test_a_killed_one_costs_no_token(verifier: InProcessVerifier, translating: InProcessDrafter) -> None:
    request = order(PROMPT, max_tokens=40)
    plain = await verifier.plain(request)
    await verifier.pool.membership.attach("translating:1", "")
    verifier.engine.hold(4)
    running = asyncio.create_task(verifier.generate(request))
    await verifier.until(lambda: verifier.state("translating:1").draft_tokens > 0)
    await verifier.network.kill("translating:1")
    verifier.engine.go_on()
    assert (await running).token_ids == plain.token_ids
    await verifier.until(lambda: translating.model.pool.used == 0)


@pytest.mark.parametrize("name", SAMPLINGS)
async def test_one_in_the_verifier_changes_no_token(verifier: InProcessVerifier, checkpoint: Path, name: str) -> None:
    requests = [order(PROMPT[:length], max_tokens=24, sampling=SAMPLINGS[name]) for length in (9, len(PROMPT))]
    plain = [await verifier.plain(request) for request in requests]
    await verifier.pool.membership.attach(f"local:draft?model={checkpoint}", "drafter")
    outputs = await asyncio.gather(*(verifier.generate(request) for request in requests))
    assert [each.token_ids for each in outputs] == [each.token_ids for each in plain]
    assert verifier.state("drafter").draft_tokens > 0


async def test_one_that_translates_for_another_target_is_refused(
    services: Services, verifier: InProcessVerifier, tmp_path: Path
) -> None:
    checkpoint = write_byte_checkpoint(tmp_path / "draft", "draft")
    elsewhere = write_byte_checkpoint(tmp_path / "elsewhere", "fallback")
    async with services.in_process_drafter(checkpoint, target_tokenizer=str(elsewhere)) as drafter:
        verifier.network.listen("other:1", drafter.servicer.converse)
        with pytest.raises(ServiceError) as refused:
            await verifier.pool.membership.attach("other:1", "")
        presented = drafter.changes.serving.hello.model.tokenizer_sha256
    assert refused.value.reason_name == "TOKENIZER_MISMATCH"
    for named in ("draft", presented, "target", verifier.verifier.model.info.tokenizer_sha256):
        assert named in refused.value.message
