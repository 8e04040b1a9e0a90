"""Requests with logit changes, with and without drafters: same output, delayed ends, and no token left to draw."""

import asyncio
from typing import Any

import pytest

from draftwire.v1.drafter_service_pb2 import DraftRequest
from draftwire.v1.sampling_pb2 import SamplingParams
from draftwire.v1.verifier_service_pb2 import FinishReason, GenerateRequest
from draftwire_core.pool.drafter.draft_messages import openings, tell_sampling
from draftwire_core.runtime.errors import ServiceError
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.in_process_verifier import PATIENCE, PROMPT, InProcessVerifier, Output, order

CHANGES: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    "bias": {"logit_bias": {71: -50.0, 90: 3.0}},
    "allowed": {"allowed_token_ids": range(3, 60)},
    "bad words": {"bad_words": ["w1", "w68 w44", "w40"], "banned_token_ids": [33, 70]},
    "typical": {"typical_p": 0.7},
}
CHANGES["all"] = {name: value for each in CHANGES.values() for name, value in each.items()}


def changed(name: str, temperature: float, **fields: Any) -> GenerateRequest:
    return order(sampling=SamplingParams(temperature=temperature, seed=3, **CHANGES[name]), **fields)


async def check_drafters_and_swaps(verifier: InProcessVerifier, name: str, temperature: float) -> None:
    """No token of a request with changes depends on its drafter, nor on a swap of it."""
    request = changed(name, temperature, max_tokens=20)
    plain = await verifier.plain(request)
    if name != "typical" or temperature:
        unchanged = order(sampling=SamplingParams(temperature=temperature, seed=3), max_tokens=20)
        assert plain.token_ids != (await verifier.plain(unchanged)).token_ids
    await verifier.pool.membership.attach("twin:1", "twin")
    drafted = await verifier.generate(request)
    assert drafted.token_ids == plain.token_ids
    assert drafted.finished.speculation.draft_tokens > 0

    verifier.engine.hold(3)
    output = Output()
    async with asyncio.timeout(PATIENCE), verifier.running(request) as running:
        async for event in running.events():
            output.take(event)
            if event.WhichOneof("event") == "chunk" and verifier.state("twin") is not None:
                await verifier.pool.changes.swap("twin", "stranger:1")
                verifier.engine.go_on()
    assert output.token_ids == plain.token_ids
    assert verifier.state("twin") is None


@pytest.mark.parametrize(("name", "temperature"), [("penalties", 0.8), ("bad words", 0.0), ("all", 0.8)])
async def test_drafters_and_swaps_change_no_token(
    verifier: InProcessVerifier, twin: InProcessDrafter, stranger: InProcessDrafter, name: str, temperature: float
) -> None:
    await check_drafters_and_swaps(verifier, name, temperature)


@pytest.mark.slow
class TestAllChanges:
    @pytest.mark.parametrize("name", CHANGES)
    @pytest.mark.parametrize("temperature", [0.0, 0.8])
    async def test_drafters_and_swaps_change_no_token(
        self,
        verifier: InProcessVerifier,
        twin: InProcessDrafter,
        stranger: InProcessDrafter,
        name: str,
        temperature: float,
    ) -> None:
        await check_drafters_and_swaps(verifier, name, temperature)


async def test_nothing_ends_an_output_before_its_least_length(
    verifier: InProcessVerifier, twin: InProcessDrafter
) -> None:
    """The end of sequence would be drawn at once, and a stop string occurs in the middle of the text."""
    ending = {"ignore_eos": False, "sampling": SamplingParams(temperature=0.0, logit_bias={1: 100.0})}
    assert (await verifier.plain(order(**ending))).token_ids == [1]
    await verifier.pool.membership.attach("twin:1", "twin")
    held = await verifier.generate(order(**ending, min_tokens=12))
    assert len(held.token_ids) == 13
    assert held.token_ids.index(1) == 12
    assert held.finished.finish_reason == FinishReason.FINISH_REASON_STOP

    free = await verifier.plain(order(max_tokens=30))
    texts = free.text.split()
    late = next(at for at in range(6, len(texts)) if texts[at] not in texts[:at])
    stop = texts[late]
    assert (await verifier.generate(order(max_tokens=30, stop=[stop]))).finished.stop == stop
    past = await verifier.generate(order(max_tokens=30, stop=[stop], min_tokens=30))
    assert (past.token_ids, past.text) == (free.token_ids, free.text)
    assert past.finished.finish_reason == FinishReason.FINISH_REASON_LENGTH


async def test_a_resumed_request_goes_on_alike(verifier: InProcessVerifier, twin: InProcessDrafter) -> None:
    request = changed("all", 0.8, max_tokens=30, min_tokens=25, ignore_eos=False)
    whole = await verifier.plain(request)
    await verifier.pool.membership.attach("twin:1", "twin")
    for known in (1, 9, 20):
        rest = GenerateRequest(resume_token_ids=whole.token_ids[:known])
        rest.MergeFrom(request)
        assert (await verifier.generate(rest)).token_ids == whole.token_ids[known:]


async def test_where_nothing_is_allowed(verifier: InProcessVerifier, twin: InProcessDrafter) -> None:
    """The request ends with its output so far and an error of its own; other and later requests go on."""
    await verifier.pool.membership.attach("twin:1", "twin")
    expected = await verifier.plain(order())
    dead = order(sampling=SamplingParams(temperature=0.0, allowed_token_ids=[10], bad_words=["w7 w7 w7"]))
    output = Output()

    async def fail() -> None:
        async with verifier.running(dead) as running:
            async for event in running.events():
                output.take(event)

    failed, other = await asyncio.gather(fail(), verifier.generate(order()), return_exceptions=True)
    assert isinstance(failed, ServiceError)
    assert (failed.code.name, failed.reason_name) == ("INVALID_ARGUMENT", "NOTHING_ALLOWED")
    assert f"at position {len(PROMPT) + 2}" in failed.message
    assert output.token_ids == [10, 10]
    assert isinstance(other, Output)
    assert other.token_ids == expected.token_ids
    assert (await verifier.generate(order())).token_ids == expected.token_ids


async def test_drafters_are_told_what_they_can_use(verifier: InProcessVerifier) -> None:
    request = order(sampling=SamplingParams(temperature=0.8, top_k=5, seed=3, **CHANGES["all"]))
    async with verifier.running(request) as running:
        (opening,) = openings(running, 1, 8)
        assert isinstance(opening, DraftRequest)
        told = opening.open.sampling
        assert told == tell_sampling(running.order.sampling)
        assert told == SamplingParams(temperature=0.8, top_k=5, top_p=1.0, min_p=0.0, typical_p=0.7, seed=3)
