"""Makes the chosen drafter ready: fetches its files, and goes on to the next one if that fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from rich.console import Console

from draftwire_core.suggesting.candidate import DrafterCandidate, Kind
from draftwire_core.suggesting.suggestion import Suggestion, megabytes
from draftwire_tools.packaged_file import FetchError
from draftwire_tools.progress import download
from draftwire_tools.small_model import SMOLLM2
from draftwire_tools.small_model import fetched as packaged

OFFLINE = "HF_HUB_OFFLINE"
"""Variable that forbids every download."""
_SCHEME = "hf://"
UNIVERSAL_SLOTS = 8192
"""KV slots of the universal drafter: its longest context. So it takes at most 190 MB for them, and in a batch of long
texts drafts for some of them, which is when drafting gains little."""
_FORMS = {
    Kind.EAGLE3: "local:eagle3?model={}",
    Kind.DFLASH: "local:dflash?model={}",
    Kind.MEDUSA: "local:medusa?heads={}",
    Kind.MODEL: "local:draft?model={}",
    Kind.UNIVERSAL: f"local:draft?model={{}}&kv_slots={UNIVERSAL_SLOTS}",
}


@dataclass(frozen=True, slots=True)
class PreparedDrafter:
    """The drafter that was chosen, if any, with what there is to say about the choice."""

    candidate: DrafterCandidate | None
    """None if the text is to be looked up in itself alone."""
    path: str
    """The drafter's files; empty if it has none of its own."""
    notes: tuple[str, ...]
    """Sentences for people: which drafter was chosen and why, and which ones could not be had."""

    @property
    def address(self) -> str | None:
        """The drafter's address in the verifier."""
        if self.candidate is None:
            return None
        form = _FORMS.get(self.candidate.kind)
        return self.candidate.name if form is None else form.format(quote(self.path, safe="/"))


def prepare(suggestion: Suggestion, fetch: Callable[[DrafterCandidate], Path]) -> PreparedDrafter:
    """Fetches the first candidate that can be had.

    fetch: returns the path of a candidate's files, see `fetched`; raises FetchError.
    """
    notes: list[str] = []
    for candidate in suggestion.usable:
        try:
            path = str(fetch(candidate)) if candidate.source else ""
        except FetchError as error:
            notes.append(f"{candidate.name} is not to be had: {error} ({cost_of(candidate)})")
            continue
        return PreparedDrafter(candidate, path, (*notes, f"{candidate.name}: {candidate.reason}"))
    notes += [f"{each.name}: {each.reason}" for each in suggestion.candidates if not each.fits]
    return PreparedDrafter(None, "", tuple(notes))


def cost_of(candidate: DrafterCandidate) -> str:
    """Returns what a candidate takes, for people."""
    parts = [f"{megabytes(candidate.fetch_bytes)} to download"] if candidate.fetch_bytes else []
    parts += [f"{megabytes(candidate.memory_bytes)} of memory"] if candidate.memory_bytes else []
    return ", ".join([*parts, *([f"licence {candidate.licence}"] if candidate.licence else [])])


def universal_is_here() -> bool:
    """Whether the universal drafter's file is in the cache."""
    try:
        return SMOLLM2.cached() is not None
    except FetchError:
        return False


def fetched(candidate: DrafterCandidate, console: Console) -> Path:
    """Returns the path of a candidate's files: those here, those of the hub, or the universal drafter's.

    console: shows the progress of a download. Raises FetchError.
    """
    if candidate.kind is Kind.UNIVERSAL:
        if offline() and not universal_is_here():
            raise FetchError(f"{OFFLINE} is set")
        return packaged(console)
    if not candidate.source.startswith(_SCHEME):
        return Path(candidate.source)
    from draftwire_core.engine.checkpoint.hub import HubError, fetch_drafter  # slow to import

    try:
        with download(console, candidate.name, "the Hugging Face hub", candidate.fetch_bytes) as advance:
            return fetch_drafter(candidate.source.removeprefix(_SCHEME), candidate.revision, advance)
    except HubError as error:
        raise FetchError(str(error)) from error


def offline() -> bool:
    """Whether a variable forbids downloads, as the hub's client reads it."""
    return os.environ.get(OFFLINE, "").upper() in ("1", "ON", "YES", "TRUE")
