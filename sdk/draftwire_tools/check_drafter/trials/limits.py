"""The limits of the drafter's hello."""

from __future__ import annotations

from draftwire_tools.check_drafter.drafter_under_test import DrafterUnderTest
from draftwire_tools.check_drafter.findings import Breach, Skip
from draftwire_tools.check_drafter.messages import opening
from draftwire_tools.check_drafter.trial import Trials

LIMITS = Trials()
_MOST_SEQUENCES = 512
_MOST_TOKENS = 1 << 20
_CHUNK = 16_384


@LIMITS.of("limits.sequences")
async def one_too_many(drafter: DrafterUnderTest) -> str | None:
    """One sequence more than the limit."""
    limit = drafter.hello.limits.max_sequences
    if not limit:
        raise Skip("announces none")
    if limit > _MOST_SEQUENCES:
        raise Skip(f"its limit is {limit}; up to {_MOST_SEQUENCES} are tried")
    async with drafter.verifier() as side:
        for number in range(1, limit + 2):
            await side.open(number, drafter.prompt(4), epoch=number, max_tree_nodes=1)
        await side.until(
            lambda: all(mirror.opened or mirror.failed for mirror in side.mirrors.values()),
            f"answers to {limit + 1} openings",
        )
        failed = [mirror for mirror in side.mirrors.values() if mirror.failed]
        for mirror in failed:
            fault = side.fault(mirror.sequence_id, mirror.epoch)
            if fault.reason != "AT_CAPACITY":
                raise Breach(f"expected AT_CAPACITY, got {fault.text}")
        if len(failed) > 1:
            raise Breach(f"announces {limit} sequences, but takes {limit + 1 - len(failed)}")
        await side.close(1)
        await side.open(1, drafter.prompt(4), epoch=limit + 2)
        await side.opened(1)
    return None if failed else "takes more than it announces"


@LIMITS.of("limits.tokens")
async def too_long(drafter: DrafterUnderTest) -> None:
    """One token more than the limit."""
    limit = drafter.hello.limits.max_sequence_tokens
    if not limit:
        raise Skip("announces none")
    if limit > _MOST_TOKENS:
        raise Skip(f"its limit is {limit}; up to {_MOST_TOKENS} are tried")
    async with drafter.verifier() as side:
        prompt = drafter.prompt(limit + 1)
        await side.send_chunks(opening(1, prompt), _CHUNK, 0, len(prompt))
        fault = await side.refusal(1)
        if fault is None:
            raise Breach(f"announces {limit} tokens, but takes an opening of {limit + 1}")
        if fault.reason != "CONTEXT_EXCEEDED":
            raise Breach(f"expected CONTEXT_EXCEEDED, got {fault.text}")
        if "committed_length" not in fault.fields:
            raise Breach(f"expected BadRequest to name committed_length, got {list(fault.fields)}")
        await side.open(2, drafter.prompt(), epoch=2)
        await side.opened(2)
