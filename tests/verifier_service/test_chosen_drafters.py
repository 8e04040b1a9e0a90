"""The drafters that are chosen where the settings say `auto`."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from draftwire.cli.failure import Failure
from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from tests.harness.models.byte_tokenizers import TEXT, backend, write_byte_checkpoint
from tests.harness.services.in_process_verifier import InProcessVerifier, order
from tests.harness.services.services import Services
from verifier_service import chosen_drafters
from verifier_service.chosen_drafters import FIRST_TOKENS, ChosenDrafters, chosen
from verifier_service.settings import VerifierSettings

LOOKUP = "local:ngram"


@pytest.fixture
async def verifier(services: Services, tmp_path: Path) -> AsyncIterator[InProcessVerifier]:
    async with services.in_process_verifier(write_byte_checkpoint(tmp_path / "target", "target")) as made:
        yield made


def choosing(verifier: InProcessVerifier, *named: str) -> ChosenDrafters:
    return ChosenDrafters("target", verifier.verifier, verifier.engine, named)


async def run_until(drafters: ChosenDrafters, verifier: InProcessVerifier, event: str) -> Mapping[str, Any]:
    """Runs the choice until it has logged an event, which is returned."""
    with capture_logs() as logs:
        running = asyncio.create_task(drafters.run())
        await verifier.until(lambda: running.done() or any(each["event"] == event for each in logs))
        running.cancel()
        await asyncio.wait([running])
    assert running.cancelled()
    return next(each for each in logs if each["event"] == event)


async def test_a_model_with_another_tokenizer_drafts_next_to_lookup(
    verifier: InProcessVerifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"local:draft?model={write_byte_checkpoint(tmp_path / 'draft', 'draft')}&kv_slots=512"

    async def found(model: str, device: str) -> dict[str, Any]:
        assert (model, device) == ("target", "cpu")
        return {"address": address, "notes": ["a reason"]}

    monkeypatch.setattr(chosen_drafters, "chosen", found)
    request = order(backend("target").encode(TEXT[0]).ids, max_tokens=12)
    plain = await verifier.plain(request)
    told = await run_until(choosing(verifier), verifier, "drafters chosen")
    assert (told["drafters"], told["reasons"]) == ([LOOKUP, address], ["a reason"])
    assert verifier.state(address).state == DrafterState.DRAFTER_STATE_READY
    assert (await verifier.generate(request)).token_ids == plain.token_ids


@pytest.mark.parametrize("error", [Failure("cannot be read"), OSError("no memory for a process")])
async def test_lookup_alone_if_there_is_no_choice(
    error: Exception, verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: str) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(chosen_drafters, "chosen", refuse)
    told = await run_until(choosing(verifier), verifier, "drafters not chosen")
    assert told["reason"] == str(error)
    assert [each.name for each in verifier.pool.describe()] == [LOOKUP]


async def test_what_cannot_be_made_is_left_out(verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(*_: str) -> dict[str, Any]:
        return {"address": "local:draft?model=/nowhere", "notes": []}

    monkeypatch.setattr(chosen_drafters, "chosen", found)
    told = await run_until(choosing(verifier, LOOKUP), verifier, "drafters chosen")
    assert told["drafters"] == []  # lookup was named, and its operator attaches it
    assert verifier.pool.describe() == []


async def test_what_does_not_pay_is_said_once_and_so_is_the_gain(
    verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafters, counts = choosing(verifier), verifier.verifier.step_counts.gain
    await drafters._attach(LOOKUP)
    monkeypatch.setattr(verifier.engine, "rests", lambda _: True)
    with capture_logs() as logs:
        for tokens in (FIRST_TOKENS - 1, FIRST_TOKENS, FIRST_TOKENS + 1, 4 * FIRST_TOKENS):
            counts.tokens = tokens
            drafters.look()
    assert [(each["event"], each.get("drafter") or each["tokens"]) for each in logs] == [
        ("drafter rested", LOOKUP),
        ("gain measured", FIRST_TOKENS),
        ("gain measured", 4 * FIRST_TOKENS),
    ]
    assert logs[-1]["resting"] == [LOOKUP]


async def test_a_target_that_is_not_there() -> None:
    with pytest.raises(Failure, match="no such directory"):
        await chosen("models/none", "cpu")


def test_chosen_drafters_draft_together_unless_a_setting_says_how_many() -> None:
    given = VerifierSettings.model_construct(model="m", drafter=("auto", "local:mtp"))
    assert (given.named_drafters, given.drafters_at_once) == (("local:mtp",), 2)
    assert VerifierSettings.model_construct(model="m", drafter=("local:mtp",)).drafters_at_once == 1
