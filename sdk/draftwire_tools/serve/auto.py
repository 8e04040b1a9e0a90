"""The drafters that are chosen for a target if none is named."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from draftwire_tools.loading import interrupt
from draftwire_tools.suggested import suggested

AUTO = "auto"
"""The draft that stands for the chosen ones."""
LOOKUP = "local:ngram"
"""The drafter that needs no model: it looks the text up in itself."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Drafters with those that were chosen in place of `auto`."""

    drafts: tuple[str, ...]
    """Draft models, and addresses of drafters in the verifier."""
    chosen: frozenset[str] = frozenset()
    """The drafts that nobody named."""
    notes: tuple[str, ...] = ()
    """Sentences about the choice."""


def choose(model: str, drafts: Sequence[str], device: str) -> Chosen:
    """Returns the drafters of a target: those given, with the chosen ones in place of `auto`, which are fetched.

    Progress is shown on stderr. Lookup is always among the chosen ones. All of them draft in the verifier, where one
    that does not pay takes no core away from the target.

    Args:
        model: the target.
        drafts: draft models, addresses of drafters in the verifier, and AUTO.
        device: of the target.

    Raises:
        Failure: the target cannot be read.
        KeyboardInterrupt: on Ctrl-C and SIGTERM.
    """
    if AUTO not in drafts:
        return Chosen(tuple(drafts))
    before = signal.signal(signal.SIGTERM, interrupt)  # so that a download ends with the command
    try:
        found = suggested(model, device, fetch=True)
    finally:
        signal.signal(signal.SIGTERM, before)
    picked = [each for each in (found["address"], LOOKUP) if each and each not in drafts]
    place = list(drafts).index(AUTO)
    others = [each for each in drafts if each != AUTO]
    return Chosen(
        (*others[:place], *picked, *others[place:]),
        frozenset(picked),
        tuple(found["notes"]),
    )
