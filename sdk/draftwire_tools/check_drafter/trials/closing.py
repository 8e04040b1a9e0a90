"""Closing sequences."""

from __future__ import annotations

from draftwire_tools.check_drafter.drafter_under_test import DrafterUnderTest
from draftwire_tools.check_drafter.messages import opening
from draftwire_tools.check_drafter.trial import Trials
from draftwire_tools.check_drafter.trials.openings import no_error
from draftwire_tools.check_drafter.trials.verdicts import is_gone

CLOSING = Trials()


@CLOSING.of("close.ends")
async def closed(drafter: DrafterUnderTest) -> None:
    """A sequence that is closed while it is drafted for."""
    async with drafter.drafting() as side:
        await side.nodes(1)
        await side.close(1)
        await side.settle()
        no_error(side, "an error for a closing")
        await is_gone(side, drafter)


@CLOSING.of("close.unknown")
async def closed_twice(drafter: DrafterUnderTest) -> None:
    """Closings of what was never opened, is only half open, or is closed already."""
    prompt = drafter.prompt()
    async with drafter.drafting() as side:
        await side.send_chunks(opening(5, prompt, epoch=2), 7, 0, 7)
        await side.close(5, 1, 77)
        await side.close(1)
        await side.settle()
        no_error(side, "an error for a closing")
        await side.open(2, prompt, epoch=3)
        await side.opened(2)


@CLOSING.of("close.reopened")
async def opened_again(drafter: DrafterUnderTest) -> None:
    """The id of a closed sequence, for another request."""
    async with drafter.drafting() as side:
        await side.nodes(1)
        await side.close(1)
        await side.open(1, drafter.prompt(9), epoch=2)
        await side.opened(1)
        await side.nodes(1)
        await side.settle()
        no_error(side, "an error")
