"""The cases of the invariance check with real services: that their events happen, and what is compared."""

import pytest

from benchmarks.harness.services import Services
from benchmarks.laws.case_requests import Requests
from benchmarks.laws.drafter_runners import Drafting
from benchmarks.laws.invariance import long_prompts
from benchmarks.laws.verifier_runners import FailingOver, FromCache, Preempting
from draftwire import AsyncClient
from tests.harness.checkout import MODELS

pytestmark = pytest.mark.slow

PROMPTS = [f"def function_{number}(value):\n    return value + {number}" for number in range(12)]
TARGET, DRAFT = MODELS / "hybrid-target", MODELS / "hybrid-draft"


@pytest.fixture(scope="module")
def services() -> Services:
    with Services() as running:
        yield running


async def requests_with(client: AsyncClient, prompts: list[str], batch: int, tokens: int, cached: bool) -> Requests:
    return Requests(client, prompts, "T=0.8", tokens, batch, cached)


async def reference(client: AsyncClient, prompts: list[str], tokens: int) -> Requests:
    requests = await requests_with(client, prompts, 1, tokens, False)
    await Drafting(client, None)(requests)
    return requests


async def test_preemption_prefix_cache_and_fail_over(services: Services) -> None:
    drafter = services.forked_drafter(DRAFT).address
    verifier = services.forked_verifier(TARGET)
    tight = services.forked_verifier(TARGET, "--kv-slots", "256")
    async with AsyncClient(verifier.address) as client, AsyncClient(tight.address, timeout=300.0) as narrow:
        expected = await reference(client, PROMPTS, 120)

        preempted = await requests_with(client, PROMPTS, 12, 120, True)
        await Preempting(narrow, drafter)(preempted)
        assert preempted.events > 0
        assert preempted.outputs() == expected.outputs()

        failed = await requests_with(client, PROMPTS, 12, 120, True)
        await FailingOver(lambda: services.forked_verifier(TARGET), drafter)(failed)
        assert failed.events == 1
        assert failed.outputs() == expected.outputs()

        long = long_prompts(["\n".join(PROMPTS[first:] + PROMPTS[:first]) for first in range(6)])
        assert len(long) == 2
        plain = await reference(client, long, 20)
        assert not any(each.usage.cached_tokens for each in plain.generations.values())
        cached = await requests_with(client, long, 2, 20, True)
        await FromCache(client, drafter)(cached)
        assert cached.events == 2
        assert cached.outputs() == plain.outputs()
