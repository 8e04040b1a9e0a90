"""Follows a drafter to another model that its service has loaded, make before break."""

from __future__ import annotations

from collections.abc import Callable

from service_runtime.errors import ServiceError
from service_runtime.logs import get_logger
from verifier_service.drafter_contact import ready
from verifier_service.drafter_link import DrafterLink
from verifier_service.drafter_swap import move_all
from verifier_service.drafting import Drafting
from verifier_service.roster import Roster

log = get_logger(__name__)


async def replace_model(
    roster: Roster, drafting: Drafting, old: DrafterLink, make: Callable[[], DrafterLink]
) -> DrafterLink | None:
    """Open a second stream to a drafter, let it have the drafter's name and sequences, and end the first.

    Returns the new link; None if it did not become ready: then the first one stays, and shows why.
    """
    new = make()
    roster.start(new)
    taken = False
    try:
        await ready(new)
        taken = roster.get(old.name) is old  # not released meanwhile
    except ServiceError as error:
        log.warning("new model not taken", drafter=old.name, address=old.address, reason=error.message)
        old.show_error(error)
    finally:
        if not taken:
            roster.end(new)
    if not taken:
        return None
    new.inherit(old)
    roster.succeed(old, new)
    moves = await move_all(drafting, old, new)
    drafting.abandon(old)
    roster.end(old)
    log.info("model replaced", drafter=new.name, moves={how.name: count for how, count in moves.items()})
    return new
