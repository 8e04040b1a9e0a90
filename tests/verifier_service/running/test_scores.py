"""The Score call: it is opt-in, its errors are specific, and other requests are unaffected."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from draftwire.v1.verifier_service_pb2 import ScoreRequest, ScoreResponse
from draftwire_core.runtime.errors import ServiceError
from tests.harness.models.tiny_checkpoint import CONTEXT, VOCABULARY
from tests.harness.services.in_process_verifier import PROMPT, TOKENS, InProcessVerifier, order
from tests.harness.services.services import Services
from tests.harness.verifier.call_context import ONE
from tests.harness.verifier.running import Running
from verifier_service.servicer import VerifierServicer

TEXT = [3 + index * 7 % 90 for index in range(100)]


@pytest.fixture
async def scoring(services: Services, checkpoint: Path) -> AsyncIterator[InProcessVerifier]:
    async with services.in_process_verifier(checkpoint, allow_scoring=True) as made:
        yield made


def call(verifier: InProcessVerifier, request: ScoreRequest) -> AsyncIterator[ScoreResponse]:
    return VerifierServicer(verifier.verifier).Score(request, ONE)


async def scored(verifier: InProcessVerifier, request: ScoreRequest) -> list[tuple[int, list[int], list[float]]]:
    """Returns position, tokens and log-probabilities of each distribution."""
    found = []
    async for response in call(verifier, request):
        assert len(response.token_ids) == len(response.log_probs)
        for index, start in enumerate(range(0, len(response.token_ids), response.top)):
            part = slice(start, start + response.top)
            found.append(
                (response.first_position + index, list(response.token_ids[part]), list(response.log_probs[part]))
            )
    return found


async def refused(verifier: InProcessVerifier, request: ScoreRequest) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await anext(call(verifier, request))
    return caught.value


async def test_it_is_off_unless_allowed(verifier: InProcessVerifier) -> None:
    error = await refused(verifier, ScoreRequest(token_ids=TEXT, top=4))
    assert (error.code.name, error.reason_name) == ("FAILED_PRECONDITION", "NOT_ENABLED")
    assert "--allow-scoring" in error.message


async def test_every_position_is_told(scoring: InProcessVerifier) -> None:
    found = await scored(scoring, ScoreRequest(token_ids=TEXT, top=4))
    assert [position for position, _, _ in found] == list(range(1, len(TEXT) + 1))
    for _, tokens, log_probs in found:
        assert len(tokens) == len(set(tokens)) == 4
        assert 0 >= log_probs[0] >= log_probs[1] >= log_probs[2] >= log_probs[3]
    assert await scored(scoring, ScoreRequest(token_ids=TEXT, top=4, first_position=90)) == found[89:]


async def test_states_come_along_if_they_are_asked_for(scoring: InProcessVerifier, checkpoint: Path) -> None:
    responses = [each async for each in call(scoring, ScoreRequest(token_ids=TEXT, top=1, states=True))]
    width = json.loads((checkpoint / "config.json").read_text())["hidden_size"]
    assert len(b"".join(each.states for each in responses)) == len(TEXT) * (4 + width)
    assert [each.states async for each in call(scoring, ScoreRequest(token_ids=TEXT[:3], top=1))] == [b""]


async def test_the_whole_distribution_sums_to_one(scoring: InProcessVerifier) -> None:
    found = await scored(scoring, ScoreRequest(token_ids=TEXT[:3], top=256))
    for _, tokens, log_probs in found:
        assert len(tokens) == VOCABULARY
        assert sum(map(math.exp, log_probs)) == pytest.approx(1.0, abs=1e-4)


async def test_it_tells_what_is_generated(scoring: InProcessVerifier) -> None:
    """Greedy decoding takes the most likely token at each position."""
    output = await scoring.generate(order())
    text = [*PROMPT, *output.token_ids]
    found = await scored(scoring, ScoreRequest(token_ids=text, top=1, first_position=len(PROMPT)))
    assert [tokens[0] for _, tokens, _ in found][:-1] == output.token_ids


@pytest.mark.parametrize(
    ("request_", "reason", "field"),
    [
        (ScoreRequest(top=1), "EMPTY_PROMPT", "token_ids"),
        (ScoreRequest(token_ids=[1, VOCABULARY], top=1), "TOKEN_OUT_OF_RANGE", "token_ids[1]"),
        (ScoreRequest(token_ids=[5] * (CONTEXT + 1), top=1), "CONTEXT_EXCEEDED", "token_ids"),
        (ScoreRequest(token_ids=TEXT), "INVALID_FIELD", "top"),
        (ScoreRequest(token_ids=TEXT, top=257), "INVALID_FIELD", "top"),
        (ScoreRequest(token_ids=TEXT, top=1, first_position=0), "INVALID_FIELD", "first_position"),
        (ScoreRequest(token_ids=TEXT, top=1, first_position=101), "INVALID_FIELD", "first_position"),
    ],
)
async def test_what_is_wrong_is_named(
    scoring: InProcessVerifier, request_: ScoreRequest, reason: str, field: str
) -> None:
    error = await refused(scoring, request_)
    assert (error.code.name, error.reason_name) == ("INVALID_ARGUMENT", reason)
    assert [violation.field for violation in error.field_violations] == [field]


async def test_requests_say_the_same_beside_it(scoring: InProcessVerifier) -> None:
    alone = await scored(scoring, ScoreRequest(token_ids=TEXT, top=4))
    async with Running(scoring) as running:  # compares its output with that of plain decoding
        beside = [asyncio.create_task(scored(scoring, ScoreRequest(token_ids=TEXT, top=4))) for _ in range(3)]
        scoring.engine.go_on()
        assert [await each for each in beside] == [alone] * 3
    assert len(running.output.token_ids) == TOKENS


async def test_a_cancelled_call_frees_its_slots(scoring: InProcessVerifier) -> None:
    scoring.engine.hold(1)
    task = asyncio.create_task(scored(scoring, ScoreRequest(token_ids=[5] * 200, top=4)))
    await scoring.until(lambda: scoring.engine.held)
    assert scoring.verifier.status().used_slots == 128
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    scoring.engine.go_on()
    await scoring.freed()
    assert not scoring.engine.busy


async def test_a_peer_has_no_more_than_its_share(services: Services, checkpoint: Path) -> None:
    async with services.in_process_verifier(checkpoint, allow_scoring=True, max_requests_per_peer=1) as verifier:
        verifier.engine.hold(0)
        first = asyncio.create_task(scored(verifier, ScoreRequest(token_ids=TEXT, top=1)))
        await verifier.until(lambda: verifier.engine.held)
        error = await refused(verifier, ScoreRequest(token_ids=TEXT, top=1))
        assert error.reason_name == "AT_CAPACITY"
        verifier.engine.go_on()
        await first
        assert len(await scored(verifier, ScoreRequest(token_ids=TEXT, top=1))) == len(TEXT)


async def test_a_stop_ends_it(scoring: InProcessVerifier) -> None:
    scoring.engine.hold(0)
    running = asyncio.create_task(scored(scoring, ScoreRequest(token_ids=TEXT, top=1)))
    await scoring.until(lambda: scoring.engine.held)
    await scoring.verifier.drain(5)
    with pytest.raises(ServiceError) as caught:
        await running
    assert caught.value.reason_name == "SHUTTING_DOWN"
    scoring.engine.go_on()
    assert (await refused(scoring, ScoreRequest(token_ids=TEXT, top=1))).reason_name == "SHUTTING_DOWN"
