"""Medusa heads beside the target and in a drafter service: no token depends on them, and bad ones are refused."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from drafter_service.models.loading import load_drafter
from drafter_service.models.model_changes import ModelChanges
from drafter_service.servicer import DrafterServicer
from drafter_service.settings import DrafterSettings
from draftwire.v1.speculation_pb2 import SpeculationOptions
from draftwire_core.engine.drafters.medusa_heads import MedusaHeads
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.process.lifecycle import Shutdown
from tests.harness.models.medusa_training import train_heads
from tests.harness.models.tiny_checkpoint import VOCABULARY
from tests.harness.services.in_process_verifier import (
    PATIENCE,
    InProcessVerifier,
    Output,
    greedy,
    order,
    sampled,
)
from tests.harness.services.services import Services
from tests.harness.stand_ins.scripted_drafter import ScriptedDrafter, hello

PROMPTS = [[5, 9, 14, 23, 42, 7], [3, 4], [60, 61, 62]]
REMOTE = "medusa:1"


@pytest.fixture(scope="module")
def heads(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads trained on the target's greedy outputs for the prompts."""
    base = AutoModelForCausalLM.from_pretrained(checkpoint)
    documents = [
        base.generate(torch.tensor([prompt]), max_new_tokens=60, do_sample=False, pad_token_id=0)[0].tolist()
        for prompt in PROMPTS
    ]
    return train_heads(base, documents, tmp_path_factory.mktemp("heads"))


@pytest.fixture
async def remote(heads: Path, verifier: InProcessVerifier) -> AsyncIterator[ModelChanges]:
    """A drafter service with the heads."""
    shutdown = Shutdown()
    changes = ModelChanges(DrafterSettings(medusa_heads=str(heads), dtype="float32"), shutdown, load_drafter)
    async with changes.running():
        verifier.network.listen(REMOTE, DrafterServicer(changes, 4).converse)
        verifier.engine.drafts_awaited = True
        yield changes
    assert shutdown.failure is None


@pytest.mark.parametrize("sampling", [greedy(), sampled()], ids=["greedy", "sampled"])
class TestNoTokenDependsOnThem:
    async def test_in_the_verifier(self, verifier: InProcessVerifier, heads: Path, sampling: Any) -> None:
        requests = [order(prompt, sampling=sampling) for prompt in PROMPTS]
        plain = [await verifier.plain(request) for request in requests]
        address = f"local:medusa?heads={heads}"
        await verifier.pool.membership.attach(address, "medusa")
        outputs = await asyncio.gather(*(verifier.generate(request) for request in requests * 2))
        assert [output.token_ids for output in outputs] == [output.token_ids for output in plain] * 2
        assert verifier.state("medusa").draft_tokens > 0

    async def test_in_a_service(self, verifier: InProcessVerifier, remote: ModelChanges, sampling: Any) -> None:
        requests = [order(prompt, sampling=sampling) for prompt in PROMPTS]
        plain = [await verifier.plain(request) for request in requests]
        await verifier.pool.membership.attach(REMOTE, "")
        outputs = await asyncio.gather(*(verifier.generate(request) for request in requests))
        assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
        drafter = verifier.state(REMOTE)
        assert drafter.draft_tokens > 0
        assert not drafter.last_error.code
        if sampling.temperature == 0:
            assert drafter.accepted_tokens > 8

    async def test_swapped_while_a_request_runs(
        self, verifier: InProcessVerifier, remote: ModelChanges, heads: Path, sampling: Any
    ) -> None:
        request = order(max_tokens=40, sampling=sampling)
        plain = await verifier.plain(request)
        verifier.engine.drafts_awaited = False
        await verifier.pool.membership.attach(REMOTE, "")
        verifier.engine.hold(3)
        output, moved = Output(), 0
        at, other = REMOTE, f"local:medusa?heads={heads}"
        async with asyncio.timeout(PATIENCE), verifier.running(request) as running:
            async for event in running.events():
                output.take(event)
                if event.WhichOneof("event") != "finished":
                    moved += (await verifier.pool.changes.swap(at, other))[1]
                    at, other = other, at
                    verifier.engine.hold(3)
        assert output.token_ids == plain.token_ids
        assert moved >= 3


async def test_only_those_that_asked_get_states(verifier: InProcessVerifier, listening: Any) -> None:
    seen: dict[str, list[bool]] = {"asks": [], "does-not": []}

    class Watching(ScriptedDrafter):
        def _follow(self, verdict: Any, opening: Any) -> Any:
            name = "asks" if self.greeting.hello.capabilities else "does-not"
            seen[name].append(verdict.HasField("hidden_state"))
            if verdict.HasField("hidden_state"):
                assert verdict.hidden_state.dtype == "float32"
                assert len(verdict.hidden_state.values) == 4 * 32
            return super()._follow(verdict, opening)

    for address, capabilities in (("asks:1", ["hidden-states"]), ("does-not:1", [])):
        drafter = Watching(greeting=hello(capabilities=capabilities))
        verifier.network.listen(address, drafter.converse)
        await verifier.pool.membership.attach(address, "")
    await verifier.generate(order(max_tokens=20, speculation=SpeculationOptions(drafters=2)))
    assert len(seen["asks"]) > 10
    assert all(seen["asks"][2:])
    assert len(seen["does-not"]) > 10
    assert not any(seen["does-not"])


@pytest.mark.parametrize(
    "other",
    ["local:ngram?min=1", "local:suffix?min=1", "local:lookahead?window=4&ngram=3", "local:early_exit?layers=1"],
)
async def test_beside_another_drafter(verifier: InProcessVerifier, heads: Path, other: str) -> None:
    request = order(sampling=sampled(), speculation=SpeculationOptions(drafters=2))
    plain = await verifier.plain(request)
    await verifier.pool.membership.attach(f"local:medusa?heads={heads}", "medusa")
    await verifier.pool.membership.attach(other, "other")
    output = await verifier.generate(request)
    assert output.token_ids == plain.token_ids
    assert all(drafter.sequences == 0 for drafter in verifier.pool.describe())
    assert verifier.state("medusa").step_time.ToNanoseconds() > 0


async def test_bad_heads_are_refused_and_the_verifier_goes_on(verifier: InProcessVerifier, tmp_path: Path) -> None:
    MedusaHeads(1, 1, 16, VOCABULARY).save(tmp_path / "other", "", torch.float32)
    for directory, words in (
        (tmp_path / "none", "no such directory"),
        (tmp_path / "other", "hidden size 16"),
    ):
        with pytest.raises(ServiceError, match=words) as caught:
            await verifier.pool.membership.attach(f"local:medusa?heads={directory}", "")
        assert caught.value.reason_name == "UNSUPPORTED_DRAFTER"
    with pytest.raises(ServiceError, match="option heads of local:medusa must name a directory"):
        await verifier.pool.membership.attach("local:medusa", "")
    assert verifier.pool.describe() == []
    assert (await verifier.generate(order())).finished.speculation.steps > 0


async def test_heads_of_another_hidden_size_in_a_service(verifier: InProcessVerifier, tmp_path: Path) -> None:
    """Sequences continue without drafts, and the drafter reports the reason."""
    MedusaHeads(1, 1, 16, VOCABULARY).save(tmp_path, "", torch.float32)
    changes = ModelChanges(DrafterSettings(medusa_heads=str(tmp_path), dtype="float32"), Shutdown(), load_drafter)
    async with changes.running():
        verifier.network.listen(REMOTE, DrafterServicer(changes, 4).converse)
        request = order(max_tokens=40)
        plain = await verifier.plain(request)
        await verifier.pool.membership.attach(REMOTE, "")
        output = await verifier.generate(request)
        assert output.token_ids == plain.token_ids
        await verifier.until(lambda: verifier.state(REMOTE).last_error.message)
        assert "must be 64 bytes" in verifier.state(REMOTE).last_error.message


async def test_a_verifier_has_no_states_for_nobody(services: Services, checkpoint: Path) -> None:
    async with services.in_process_verifier(checkpoint) as verifier:
        verifier.engine.model.forward_with_states = None  # type: ignore[assignment, method-assign]
        try:
            await verifier.pool.membership.attach("local:ngram?min=1", "")
            await verifier.generate(order())
        finally:
            del verifier.engine.model.forward_with_states
