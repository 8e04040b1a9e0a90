"""The cases that the invariance check adds to `draftwire check`, with real services: that their events happen."""

from collections.abc import Iterator
from functools import partial

import pytest

from benchmarks.harness.services import Services
from benchmarks.laws.invariance import check_prompts, lines
from draftwire import AsyncClient
from draftwire_tools.check.comparison import Comparison, generate
from draftwire_tools.check.drafters import PLAIN, drafting
from draftwire_tools.check.request import SAMPLINGS, check_requests
from tests.harness.checkout import MODELS
from tests.harness.kills import KilledDrafters, KilledVerifiers

pytestmark = pytest.mark.slow

PROMPTS = [f"def function_{number}(value):\n    return value + {number}" for number in range(12)]
TARGET, DRAFT = MODELS / "hybrid-target", MODELS / "hybrid-draft"


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with Services() as running:
        yield running


def comparison(texts: list[str], tokens: int) -> Comparison:
    return Comparison(check_requests(check_prompts(texts), tokens, 0, {"T=0.8": SAMPLINGS["T=0.8"]}))


async def test_preemption_kills_and_prefix_cache(services: Services) -> None:
    drafter = services.forked_drafter(DRAFT).address
    verifier = services.forked_verifier(TARGET)
    tight = services.forked_verifier(TARGET, "--kv-slots", "256")
    async with AsyncClient(verifier.address, timeout=300.0) as client, AsyncClient(tight.address) as narrow:
        await narrow.drafters.attach(drafter, "draft")
        plain = partial(generate, client, speculation=PLAIN, prefix_cache=False)
        short = comparison(PROMPTS, 120)
        await short.run_plain(plain)

        def fits(request: object) -> bool:
            return request in short.requests[: len(PROMPTS)]

        tightly = partial(generate, narrow, speculation=drafting(["draft"]))
        await short.compare("preemption", tightly, batch=12, only=fits)
        assert (await narrow.model_info()).engine.preemptions > 0

        drafters = KilledDrafters(client, partial(services.forked_drafter, DRAFT))
        await short.compare("a drafter killed", around=drafters.around, batch=12, only=fits)
        assert drafters.kills == 1

        verifiers = KilledVerifiers(partial(services.forked_verifier, TARGET), drafter)
        failed = await short.compare("a verifier killed", around=verifiers.around, batch=12, only=fits)
        assert failed.sum("resumes") > 0
        verifiers.stop()

        long = comparison(["\n".join(PROMPTS[first:] + PROMPTS[:first]) for first in range(3)], 20)
        await long.run_plain(plain)
        assert not long.plainly.sum("cached")
        again = partial(generate, client, speculation=PLAIN)
        await long.compare("read once", again)
        cached = await long.compare("read before", again)
        assert cached.sum("cached") > 0

    for case in (*short.cases, *long.cases):
        assert case.compared and case.differences == [], case.name
    assert {line["differing"] for line in lines(short.cases)} == {0}
