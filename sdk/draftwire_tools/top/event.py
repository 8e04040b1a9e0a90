"""Events of a pool of drafters, derived from its successive states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from draftwire._types.drafter import Drafter


@dataclass(frozen=True, slots=True)
class Event:
    """An event at a verifier."""

    at: datetime
    """Time at which it was noticed (UTC)."""
    verifier: str
    """Address of the verifier."""
    what: str
    """Description of the event."""


def pool_changes(before: Sequence[Drafter], now: Sequence[Drafter]) -> list[str]:
    """Returns descriptions of the events between two states of a pool.

    A swap appears as a drafter that is draining, other drafters that gain sequences, and the drafter's removal.
    """
    known = {each.name: each for each in before}
    present = {each.name: each for each in now}
    told = []
    for drafter in now:
        earlier = known.get(drafter.name)
        if earlier is None or earlier.attached_at != drafter.attached_at:
            told.append(f"{_named(drafter)} is attached{_by_itself(drafter)}, {drafter.state}")
            continue
        if earlier.state != drafter.state:
            told.append(f"{drafter.name}: {earlier.state} -> {drafter.state}{_why(drafter)}")
        if earlier.model and drafter.model and earlier.model.model_id != drafter.model.model_id:
            told.append(f"{drafter.name}: model {earlier.model.model_id} -> {drafter.model.model_id}")
        told += _learned(earlier, drafter)
    for drafter in before:
        if drafter.name not in present:
            told.append(f"{drafter.name} is detached{_successors(drafter, known, present)}")
    return told


def _named(drafter: Drafter) -> str:
    return drafter.name if drafter.name == drafter.address else f"{drafter.name} ({drafter.address})"


def _by_itself(drafter: Drafter) -> str:
    return " (announced itself)" if drafter.announced else ""


def _why(drafter: Drafter) -> str:
    if drafter.state == "draining" and drafter.sequences:
        return f", {drafter.sequences} sequences move"
    if drafter.state in ("unreachable", "suspended", "incompatible") and drafter.last_error is not None:
        return f": {drafter.last_error}"
    return ""


def _learned(earlier: Drafter, now: Drafter) -> list[str]:
    """Returns the result of a round of learning that has ended meanwhile."""
    last = now.learning.last_round if now.learning is not None else None
    known = earlier.learning.last_round if earlier.learning is not None else None
    if last is None or (known is not None and known.ended_at == last.ended_at):
        return []
    return [f"{now.name}: learned version {last.version} {'is' if last.promoted else 'is not'} promoted: {last.reason}"]


def _successors(gone: Drafter, known: dict[str, Drafter], present: dict[str, Drafter]) -> str:
    if gone.state != "draining" and not gone.sequences:
        return ""
    more = [name for name, each in present.items() if each.sequences > (known[name].sequences if name in known else 0)]
    return f"; more sequences at {', '.join(more)}" if more else ""
