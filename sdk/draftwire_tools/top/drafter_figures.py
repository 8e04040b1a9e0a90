"""Figures of a drafter, from two readings of its verifier."""

from __future__ import annotations

from dataclasses import dataclass

from draftwire._types.drafter import Drafter, DrafterState
from draftwire_tools.top.sample import Sample


@dataclass(frozen=True, slots=True)
class DrafterFigures:
    """Figures of one drafter. Rates are per second between the two readings; None if there is only one."""

    verifier: str
    """Address of the verifier."""
    name: str
    address: str
    model: str | None
    """The drafter's model; None before the first handshake, and for a drafter without a model."""
    state: DrafterState
    sequences: int
    """Sequences that use it now."""
    acceptance_rate: float | None
    """Accepted / draft tokens since it was attached, in [0, 1]; None when nothing was verified."""
    recent_acceptance_rate: float | None
    """Accepted / draft tokens between the two readings."""
    draft_tokens_per_second: float | None
    """The drafter's draft tokens verified, those of requests with a lossy rule included."""
    stale_nodes_per_second: float | None
    """Proposed nodes that arrived too late."""
    accepted_per_second: float
    """Recent rate of accepted draft tokens per second of its drafting time; the verifier chooses drafters by it."""
    step_seconds: float | None
    """Smoothed time of one of its drafting steps."""
    response_seconds: float | None
    """Smoothed time from a verdict to the first proposal that builds on it: the round trip, drafting included."""
    error: str | None
    """The drafter's last error, if any."""
    learned_version: int | None
    """Number of the learned version that drafts, 0 for the model as it was at first; None if nothing learns."""
    first_agreement: float | None
    """Share of held-out tokens, in [0, 1], that the model found likeliest before it learned; None while unknown."""
    agreement: float | None
    """Share of held-out tokens, in [0, 1], that the version that drafts found likeliest; None while unknown."""


def drafter_figures(verifier: str, now: Sample, before: Sample | None) -> list[DrafterFigures]:
    """Returns the figures of a verifier's drafters, oldest first; ``before`` is an earlier reading, if any."""
    known = {(each.name, each.attached_at): each for each in before.drafters} if before else {}
    seconds = now.at - before.at if before else 0.0
    return [_figures(verifier, each, known.get((each.name, each.attached_at)), seconds) for each in now.drafters]


def _figures(verifier: str, now: Drafter, before: Drafter | None, seconds: float) -> DrafterFigures:
    recent = drafted = stale = None
    if before is not None and now.draft_tokens >= before.draft_tokens:
        verified = now.draft_tokens - before.draft_tokens
        recent = (now.accepted_tokens - before.accepted_tokens) / verified if verified else None
        drafted = (verified + now.lossy_draft_tokens - before.lossy_draft_tokens) / seconds
        stale = (now.stale_nodes - before.stale_nodes) / seconds
    return DrafterFigures(
        verifier=verifier,
        name=now.name,
        address=now.address,
        model=now.model.model_id if now.model else None,
        state=now.state,
        sequences=now.sequences,
        acceptance_rate=now.acceptance_rate if now.draft_tokens else None,
        recent_acceptance_rate=recent,
        draft_tokens_per_second=drafted,
        stale_nodes_per_second=stale,
        accepted_per_second=now.accepted_per_second,
        step_seconds=now.step_seconds,
        response_seconds=now.response_seconds,
        error=str(now.last_error) if now.last_error else None,
        learned_version=now.learning.version if now.learning else None,
        first_agreement=now.learning.first_agreement if now.learning else None,
        agreement=now.learning.agreement if now.learning else None,
    )
