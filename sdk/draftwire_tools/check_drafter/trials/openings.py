"""Openings: chunks, epochs, repetition, and several sequences."""

from __future__ import annotations

from draftwire_tools.check_drafter.drafter_under_test import DrafterUnderTest
from draftwire_tools.check_drafter.findings import Breach
from draftwire_tools.check_drafter.messages import opening
from draftwire_tools.check_drafter.trial import Trials
from draftwire_tools.check_drafter.verifier_side import VerifierSide

OPENINGS = Trials()


def no_error(side: VerifierSide, what: str) -> None:
    """Raises Breach if a sequence has failed."""
    if side.faults:
        raise Breach(f"{what}: {next(iter(side.faults.values()))[0].text}")


@OPENINGS.of("opening.answered")
async def opens(drafter: DrafterUnderTest) -> None:
    """The simplest opening."""
    async with drafter.drafting() as side:
        await side.settle()
        no_error(side, "an error for a correct opening")


@OPENINGS.of("opening.chunks")
async def in_chunks(drafter: DrafterUnderTest) -> None:
    """An opening in four chunks, the last of which comes later."""
    prompt = drafter.prompt()
    async with drafter.verifier() as side:
        mirror = await side.open(1, prompt, chunk=7, until=21)
        await side.settle()
        if mirror.opened:
            raise Breach(f"SequenceOpened after 21 of {len(prompt)} tokens")
        no_error(side, "an error for a chunk")
        await side.send_chunks(opening(1, prompt), 7, 21, len(prompt))
        await side.opened(1)
        await side.nodes(1)


@OPENINGS.of("opening.repeated")
async def sent_again(drafter: DrafterUnderTest) -> None:
    """The same opening twice."""
    async with drafter.drafting() as side:
        await side.nodes(1)
        await side.settle()
        await side.send(open=opening(1, drafter.prompt()))
        await side.settle()
        no_error(side, "an error for an opening that was sent again")
        if len(side.confirmed) > 1:
            raise Breach("SequenceOpened again: the sequence has begun again")
        await side.commit({1: side.mirrors[1].best_path()[:1] or drafter.prompt()[:1]})
        await side.settle()
        no_error(side, "an error for a verdict after it")


@OPENINGS.of("opening.larger_epoch")
async def opened_anew(drafter: DrafterUnderTest) -> None:
    """The same id with a larger epoch and more tokens, while it is open."""
    prompt = drafter.prompt()
    async with drafter.drafting() as side:
        await side.nodes(1)
        await side.open(1, [*prompt, *prompt[:3]], epoch=4)
        await side.opened(1)
        await side.nodes(1)
        await side.settle()
        no_error(side, "an error for a larger epoch")


@OPENINGS.of("opening.older_epoch")
async def an_older_opening(drafter: DrafterUnderTest) -> None:
    """An opening with an epoch older than the one that is open; verdicts of the open one go on."""
    prompt = drafter.prompt()
    async with drafter.drafting(epoch=4) as side:
        await side.nodes(1)
        await side.send(open=opening(1, prompt[:9], epoch=3))
        await side.settle()
        if (1, 3) in side.faults:
            raise Breach(f"an error: {side.fault(1, 3).text}")
        if (1, 3) in side.confirmed:
            raise Breach("SequenceOpened for the older epoch")
        await side.commit({1: side.mirrors[1].best_path()[:1] or prompt[:1]})
        await side.settle()
        no_error(side, "an error for a verdict of the open epoch after it")


@OPENINGS.of("opening.two")
async def two_sequences(drafter: DrafterUnderTest) -> None:
    """Two sequences with other tokens, epochs and credit; verdicts of both come in one message."""
    prompt = drafter.prompt(26)
    async with drafter.verifier() as side:
        await side.open(7, prompt[:-1], epoch=2, chunk=9)
        await side.open(3, prompt[3:], epoch=3, max_tree_nodes=5)
        for each in (7, 3):
            await side.opened(each)
        for _ in range(3):
            await side.nodes(7)
            await side.settle()
            commits = {each: side.mirrors[each].best_path()[:2] or [side.mirrors[each].tokens[-4]] for each in (7, 3)}
            await side.commit(commits)
        for each in (3, 7):  # fails if a verdict of the batches was lost
            await side.commit({each: [side.mirrors[each].tokens[-4]]})
        await side.settle()
        no_error(side, "an error for a correct message")
