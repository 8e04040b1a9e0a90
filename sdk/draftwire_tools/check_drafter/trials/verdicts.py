"""Verdicts that do not fit, and sequences that fail."""

from __future__ import annotations

from draftwire.v1 import verdict_pb2
from draftwire_tools.check_drafter.drafter_under_test import DrafterUnderTest
from draftwire_tools.check_drafter.findings import Breach
from draftwire_tools.check_drafter.messages import verdict
from draftwire_tools.check_drafter.received import Fault
from draftwire_tools.check_drafter.trial import Trials
from draftwire_tools.check_drafter.trials.openings import no_error
from draftwire_tools.check_drafter.verifier_side import VerifierSide

VERDICTS = Trials()


async def send_verdict(side: VerifierSide, sequence_id: int, epoch: int, length: int, tokens: list[int]) -> None:
    """Sends one verdict that the mirror does not follow."""
    entry = verdict(sequence_id, epoch, length, tokens)
    await side.send(verdicts=verdict_pb2.VerdictBatch(verdicts=[entry]))


def expect(fault: Fault, reason: str) -> None:
    """Raises Breach if a fault has another reason."""
    if fault.reason != reason:
        raise Breach(f"expected {reason}, got {fault.text}")


@VERDICTS.of("verdict.out_of_sync")
async def out_of_sync(drafter: DrafterUnderTest) -> None:
    """A verdict after one that was lost."""
    async with drafter.drafting() as side:
        length = len(side.mirrors[1].tokens)
        await send_verdict(side, 1, 1, length + 3, drafter.prompt()[:2])
        expect(await side.error(1), "OUT_OF_SYNC")


@VERDICTS.of("verdict.failed")
async def after_a_failure(drafter: DrafterUnderTest) -> None:
    """Verdicts that were under way when the opening failed."""
    async with drafter.drafting() as side:
        length = len(side.mirrors[1].tokens)
        await send_verdict(side, 1, 1, length + 3, drafter.prompt()[:2])
        await side.error(1)
        await send_verdict(side, 1, 1, length + 4, drafter.prompt()[:1])
        await side.settle()
        if len(side.faults[1, 1]) > 1:
            raise Breach(f"a second error for the same opening: {side.fault(1).text}")


@VERDICTS.of("verdict.reopened")
async def reopened_after_a_failure(drafter: DrafterUnderTest) -> None:
    """The opening by which a verifier puts a drafter back in step."""
    prompt = drafter.prompt()
    async with drafter.drafting() as side:
        await send_verdict(side, 1, 1, len(prompt) + 3, prompt[:2])
        await side.error(1)
        await side.open(1, [*prompt, *prompt[:3]], epoch=2)
        await side.opened(1)
        await side.nodes(1)


@VERDICTS.of("error.others")
async def others_go_on(drafter: DrafterUnderTest) -> None:
    """One of two sequences fails."""
    prompt = drafter.prompt()
    async with drafter.drafting() as side:
        await side.open(2, prompt, epoch=2)
        await side.opened(2)
        await send_verdict(side, 1, 1, len(prompt) + 3, prompt[:2])
        await side.error(1)
        await side.commit({2: prompt[:1]})
        await side.settle()
        if side.mirrors[2].failed:
            raise Breach(f"the other sequence failed, too: {side.fault(2, 2).text}")
        await side.open(3, prompt, epoch=3)
        await side.opened(3)


@VERDICTS.of("verdict.unknown")
async def unknown_sequence(drafter: DrafterUnderTest) -> None:
    """Verdicts for an id that was never opened, and for an epoch that is not open yet."""
    async with drafter.drafting() as side:
        await send_verdict(side, 9, 1, 5, drafter.prompt()[:1])
        expect(await side.error(9), "UNKNOWN_SEQUENCE")
        await send_verdict(side, 1, 3, len(side.mirrors[1].tokens) + 1, drafter.prompt()[:1])
        expect(await side.error(1, 3), "UNKNOWN_SEQUENCE")


@VERDICTS.of("verdict.older_epoch")
async def older_epoch(drafter: DrafterUnderTest) -> None:
    """A verdict of the opening before, which a new one overtook."""
    prompt = drafter.prompt()
    async with drafter.drafting() as side:
        await side.open(1, prompt, epoch=2)
        await side.opened(1)
        await send_verdict(side, 1, 1, len(prompt) + 1, prompt[:1])
        await side.settle()
        no_error(side, "an error")
        await side.commit({1: side.mirrors[1].best_path()[:1] or prompt[:1]})
        await side.settle()
        no_error(side, "an error for the next verdict of the open epoch: it took the older one")


@VERDICTS.of("error.from_verifier")
async def the_verifier_gives_up(drafter: DrafterUnderTest) -> None:
    """A SequenceError of the verifier; the id's next verdict is for nothing that is open."""
    async with drafter.drafting() as side:
        await side.open(2, drafter.prompt(), epoch=2)
        await side.opened(2)
        await side.give_up(1)
        await side.settle()
        if (1, 1) in side.faults:
            raise Breach(f"answers it by an error: {side.fault(1).text}")
        await is_gone(side, drafter)
        if side.mirrors[2].failed:
            raise Breach("the other sequence failed, too")


async def is_gone(side: VerifierSide, drafter: DrafterUnderTest) -> None:
    """Checks that sequence 1 is no longer open, by a verdict that would continue it."""
    await send_verdict(side, 1, 1, len(side.mirrors[1].tokens) + 1, drafter.prompt()[:1])
    await side.settle()
    faults = side.faults.get((1, 1), [])
    if not faults:
        raise Breach("still takes verdicts for it")
    expect(faults[-1], "UNKNOWN_SEQUENCE")
