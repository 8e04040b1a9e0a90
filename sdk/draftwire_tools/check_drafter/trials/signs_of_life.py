"""Signs of life, and what the drafter reports of itself."""

from __future__ import annotations

from draftwire_tools.check_drafter.drafter_under_test import DrafterUnderTest
from draftwire_tools.check_drafter.findings import Breach, Skip
from draftwire_tools.check_drafter.trial import Trials

SIGNS_OF_LIFE = Trials()
_LARGEST = 2**64 - 1


@SIGNS_OF_LIFE.of("ping.pong")
async def pings(drafter: DrafterUnderTest) -> None:
    """Three pings, one of them with the largest number."""
    if "ping" not in drafter.hello.capabilities:
        raise Skip("it has not the capability ping")
    async with drafter.verifier() as side:
        for number in (5, _LARGEST, 0):
            await side.ping(number)
        await side.until(lambda: {5, _LARGEST, 0} <= set(side.pongs), "pongs of 5, 2^64 - 1 and 0")
        await side.settle()
    drafter.pings = True  # other trials know by a pong that the drafter has read what came before


@SIGNS_OF_LIFE.of("info.same")
async def model_info(drafter: DrafterUnderTest) -> None:
    """GetModelInfo, which a drafter need not serve."""
    info = await drafter.model_info()
    for field in ("tokenizer_sha256", "vocab_size", "model_id"):
        said, greeted = getattr(info.model, field), getattr(drafter.hello.model, field)
        if said != greeted:
            raise Breach(f"model.{field} is {said!r} there, {greeted!r} in its hello")
