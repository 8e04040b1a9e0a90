"""The prefix cache as reported by requests and GetModelInfo."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from draftwire.v1.verifier_service_pb2 import PrefixCacheStatus
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.in_process_verifier import InProcessVerifier, greedy, order, sampled
from tests.harness.services.services import Services

LONG = [5 + position % 50 for position in range(200)]


def status(verifier: InProcessVerifier) -> PrefixCacheStatus:
    return verifier.verifier.status().prefix_cache


async def cached(verifier: InProcessVerifier, **fields: Any) -> int:
    output = await verifier.generate(order(LONG, 10, **fields))
    return output.finished.usage.cached_tokens


async def test_usage_and_status_tell_what_was_found(verifier: InProcessVerifier) -> None:
    assert await cached(verifier) == 0
    assert await cached(verifier) == 199
    await verifier.freed()
    assert status(verifier) == PrefixCacheStatus(cached_slots=209, queried_tokens=2 * 199, hit_tokens=199)


async def test_a_request_may_do_without(verifier: InProcessVerifier) -> None:
    assert await cached(verifier, prefix_cache=False) == 0
    await verifier.freed()
    assert status(verifier) == PrefixCacheStatus()
    assert await cached(verifier, prefix_cache=True) == 0
    assert await cached(verifier, prefix_cache=False) == 0
    assert await cached(verifier) == 199


async def test_a_request_that_goes_on_elsewhere_finds_its_output(verifier: InProcessVerifier) -> None:
    request = order(LONG, 30, sampling=sampled())
    whole = await verifier.generate(request)
    request.resume_token_ids.extend(whole.token_ids[:12])
    rest = await verifier.generate(request)
    assert rest.token_ids == whole.token_ids[12:]
    assert rest.finished.usage.cached_tokens == 200 + 12 - 1


@pytest.mark.parametrize("sampling", [greedy(), sampled()], ids=["greedy", "sampled"])
@pytest.mark.parametrize("address", [None, "twin:1", "local:early_exit?layers=1", "local:ngram?min=1"])
async def test_conversations_say_the_same(
    verifier: InProcessVerifier, twin: InProcessDrafter, address: str | None, sampling: Any
) -> None:
    """Three conversations at once, of two turns each, that begin with the same tokens."""
    if address is not None:
        await verifier.pool.membership.attach(address, "")
    verifier.engine.drafts_awaited = address == "twin:1"
    turns = [order([*LONG, 60 + number], 10, sampling=sampling) for number in range(3)]
    for turn in range(2):
        outputs = await asyncio.gather(*(verifier.generate(request) for request in turns))
        found = [output.finished.usage.cached_tokens for output in outputs]
        for request, output in zip(turns, outputs, strict=True):
            assert output.token_ids == (await verifier.plain(request)).token_ids
            request.token_ids.ids.extend([*output.token_ids, 7, 8])
        if turn:
            assert found == [200 + 1 + 10 - 1] * 3
        else:
            assert found[0] == 0 and found[1:] == [200] * 2, "they waited for the first one"


async def test_room_for_others_is_made_of_it(services: Services, checkpoint: Path) -> None:
    async with services.in_process_verifier(checkpoint, slots=300) as verifier:
        for number in range(6):
            await verifier.generate(order([number, *LONG[:120]], 10))
            await verifier.freed()
        assert 0 < status(verifier).cached_slots <= 300
        assert status(verifier).evicted_tokens >= 6 * 130 - 300
