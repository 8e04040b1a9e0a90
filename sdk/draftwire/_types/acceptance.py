"""Acceptance rules, presets and plannings, by name and by number in the contract, and the counts of each rule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from draftwire._types.speculation import Acceptance, Planning, Preset
from draftwire.v1.speculation_pb2 import AcceptancePreset, AcceptanceRule, DraftPlanning
from draftwire.v1.verifier_service_pb2 import AcceptanceCount as AcceptanceCountMessage

RULES: dict[Acceptance, AcceptanceRule] = {
    "coupled": AcceptanceRule.ACCEPTANCE_RULE_COUPLED,
    "rejection": AcceptanceRule.ACCEPTANCE_RULE_REJECTION,
    "typical": AcceptanceRule.ACCEPTANCE_RULE_TYPICAL,
    "threshold": AcceptanceRule.ACCEPTANCE_RULE_THRESHOLD,
}
PRESETS: dict[Preset, AcceptancePreset] = {
    "auto": AcceptancePreset.ACCEPTANCE_PRESET_AUTO,
    "code": AcceptancePreset.ACCEPTANCE_PRESET_CODE,
    "json": AcceptancePreset.ACCEPTANCE_PRESET_JSON,
    "narrative": AcceptancePreset.ACCEPTANCE_PRESET_NARRATIVE,
}
PLANNINGS: dict[Planning, DraftPlanning] = {
    "auto": DraftPlanning.DRAFT_PLANNING_AUTO,
    "always": DraftPlanning.DRAFT_PLANNING_ALWAYS,
}
RULE_NAMES = {number: name for name, number in RULES.items()}
PRESET_NAMES = {number: name for name, number in PRESETS.items()}
PLANNING_NAMES = {number: name for name, number in PLANNINGS.items()}


@dataclass(frozen=True, slots=True)
class AcceptanceCount:
    """Counts of one acceptance rule since the verifier started."""

    rule: Acceptance
    """The rule."""
    requests: int
    """Requests started with this rule."""
    tokens: int
    """Tokens committed for these requests."""
    draft_tokens: int
    """Draft tokens verified for these requests."""
    accepted_tokens: int
    """Draft tokens accepted for these requests."""


def read_acceptance_counts(messages: Iterable[AcceptanceCountMessage]) -> list[AcceptanceCount]:
    """Returns the counts from their messages; rules newer than this SDK are skipped."""
    return [
        AcceptanceCount(
            RULE_NAMES[message.rule], message.requests, message.tokens, message.draft_tokens, message.accepted_tokens
        )
        for message in messages
        if message.rule in RULE_NAMES
    ]
