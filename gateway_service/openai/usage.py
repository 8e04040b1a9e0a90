"""The reports on tokens and on speculation in a response."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from pydantic import BaseModel

from draftwire import Acceptance, Generation, Planning, Preset, SpeculationStats

_PREDICTION = "prediction"
"""Name of the drafter that drafts from a request's prediction."""


class PromptTokensDetails(BaseModel):
    """Details of the prompt's tokens."""

    cached_tokens: int
    """Prompt tokens that came from the prefix cache."""


class CompletionTokensDetails(BaseModel):
    """Details of the completion's tokens."""

    accepted_prediction_tokens: int
    """Tokens of the request's prediction that the target accepted."""
    rejected_prediction_tokens: int
    """Tokens of the request's prediction that were verified and rejected."""


class UsageReport(BaseModel):
    """Tokens of a request; a prompt counts once, whatever n."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class DrafterReport(BaseModel):
    """One drafter's share."""

    name: str
    draft_tokens: int
    accepted_tokens: int


class SpeculationReport(BaseModel):
    """Statistics of a request's speculation, over all choices."""

    acceptance_rate: float
    """Accepted tokens / draft tokens."""
    acceptance_length: float
    """Tokens per verification, the bonus token included."""
    steps: int
    """Forward passes of the target that produced at least one token of a choice."""
    draft_tokens: int
    """Draft tokens that were verified."""
    accepted_tokens: int
    """Draft tokens that were accepted."""
    num_drafts: int
    """Steps that verified at least one draft token."""
    accepted_per_position: list[int]
    """Accepted draft tokens by position in their step: the first, the second, and so on."""
    drafters: list[DrafterReport]
    """Counts for each drafter."""
    acceptance: Acceptance
    """The acceptance rule in effect."""
    preset: Preset | None
    """The preset in effect."""
    threshold: float | None
    """The threshold in effect."""
    planning: Planning
    """The planning in effect."""
    lossless: bool
    """Whether the output has the target's own distribution."""


def usage_report(results: Sequence[Generation], choices_each: int) -> UsageReport:
    """Returns the usage of a request. results: in order of prompts, `choices_each` for each prompt."""
    firsts = results[::choices_each]
    prompt = sum(result.usage.prompt_tokens for result in firsts)
    completion = sum(result.usage.completion_tokens for result in results)
    shares = [share for result in results for share in result.speculation.drafters if share.name == _PREDICTION]
    accepted = sum(share.accepted_tokens for share in shares)
    return UsageReport(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(result.usage.cached_tokens for result in firsts)),
        completion_tokens_details=CompletionTokensDetails(
            accepted_prediction_tokens=accepted,
            rejected_prediction_tokens=sum(share.draft_tokens for share in shares) - accepted,
        ),
    )


def speculation_report(results: Sequence[Generation]) -> SpeculationReport:
    """Returns the report on speculation for at least one choice."""
    each = [result.speculation for result in results]
    tokens, steps = sum(stats.tokens for stats in each), sum(stats.steps for stats in each)
    draft, accepted = sum(stats.draft_tokens for stats in each), sum(stats.accepted_tokens for stats in each)
    positions = zip_longest(*(stats.accepted_per_position for stats in each), fillvalue=0)
    return SpeculationReport(
        acceptance_rate=accepted / draft if draft else 0.0,
        acceptance_length=tokens / steps if steps else 0.0,
        steps=steps,
        draft_tokens=draft,
        accepted_tokens=accepted,
        num_drafts=sum(stats.drafts for stats in each),
        accepted_per_position=[sum(counts) for counts in positions],
        drafters=_drafters(each),
        acceptance=each[0].acceptance,
        preset=each[0].preset,
        threshold=each[0].threshold,
        planning=each[0].planning,
        lossless=all(stats.lossless for stats in each),
    )


def _drafters(each: Sequence[SpeculationStats]) -> list[DrafterReport]:
    found: dict[str, DrafterReport] = {}
    for share in (share for stats in each for share in stats.drafters):
        report = found.setdefault(share.name, DrafterReport(name=share.name, draft_tokens=0, accepted_tokens=0))
        report.draft_tokens += share.draft_tokens
        report.accepted_tokens += share.accepted_tokens
    return list(found.values())
