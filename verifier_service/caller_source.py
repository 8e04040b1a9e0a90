"""What the engine calls a caller that drafts for its own request, and what everybody else does."""

from __future__ import annotations

from typing import overload

CALLER = "caller"
"""The drafter's name in a request's statistics and chunks. No drafter of the pool has it."""
_PREFIX = f"{CALLER}#"


def caller_source(sequence_id: int) -> str:
    """The source of a caller's proposals in the engine.

    Each request has its own: what is learned of one caller's drafts says nothing of another's.
    """
    return f"{_PREFIX}{sequence_id}"


@overload
def public_name(source: str) -> str: ...


@overload
def public_name(source: None) -> None: ...


@overload
def public_name(source: str | None) -> str | None: ...


def public_name(source: str | None) -> str | None:
    """What a source is called outside the engine."""
    return CALLER if source is not None and source.startswith(_PREFIX) else source


def is_reserved(name: str) -> bool:
    """Whether no drafter of the pool may be called so."""
    return name == CALLER or name.startswith(_PREFIX)
