"""Reads the acceptance rule of a request, settles what the request left open, and reports the result."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from draftwire.v1.speculation_pb2 import AcceptancePreset, AcceptanceRule, SpeculationOptions, SpeculationStats
from draftwire_core.engine.acceptance.acceptance import COUPLED, Acceptance, RuleName
from draftwire_core.engine.errors import FieldError
from draftwire_core.runtime.errors import invalid_field
from verifier_service.reading.same_names import given

THRESHOLDS = {
    AcceptancePreset.ACCEPTANCE_PRESET_CODE: 0.75,
    AcceptancePreset.ACCEPTANCE_PRESET_JSON: 0.65,
    AcceptancePreset.ACCEPTANCE_PRESET_NARRATIVE: 0.5,
}
"""Probability that the target must give a draft token, by preset: the more a wrong token breaks, the higher."""

_MENTIONS_JSON = re.compile(r"\bjson\b", re.I)
_JSON = re.compile(r"^\s*[\[{]\s*[\"\[{\]}\d]|\"\s*:\s*[\"\[{\d]")
_MENTIONS_CODE = re.compile(r"```|\b(code|python|javascript|typescript|java|rust|golang|sql|c\+\+)(?!\w)", re.I)
_CODE_LINE = re.compile(
    r"^\s*(def|class|import|from \S+ import|return|func|fn|function|const|let|var|public|private|static)\b"
    r"|^\s*(//|/\*|#!|#include|@\w)|[;{}]\s*$|\)\s*(->.*)?:\s*$|^\s*[\w.]+\s*=[^=]"
)
_LEAST_CODE = 0.4
"""Share of lines that must look like code for a prompt to count as code."""


def looks_like(prompt: str) -> AcceptancePreset:
    """Returns the preset for a prompt: JSON if it mentions or contains JSON, else code, else narrative."""
    if _MENTIONS_JSON.search(prompt) or _JSON.search(prompt):
        return AcceptancePreset.ACCEPTANCE_PRESET_JSON
    lines = [line for line in prompt.splitlines() if line.strip()]
    code = sum(_CODE_LINE.search(line) is not None for line in lines)
    if _MENTIONS_CODE.search(prompt) or (lines and code >= _LEAST_CODE * len(lines)):
        return AcceptancePreset.ACCEPTANCE_PRESET_CODE
    return AcceptancePreset.ACCEPTANCE_PRESET_NARRATIVE


_RULES = {
    AcceptanceRule.ACCEPTANCE_RULE_UNSPECIFIED: RuleName.COUPLED,
    AcceptanceRule.ACCEPTANCE_RULE_COUPLED: RuleName.COUPLED,
    AcceptanceRule.ACCEPTANCE_RULE_REJECTION: RuleName.REJECTION,
    AcceptanceRule.ACCEPTANCE_RULE_TYPICAL: RuleName.TYPICAL,
    AcceptanceRule.ACCEPTANCE_RULE_THRESHOLD: RuleName.THRESHOLD,
}
_NUMBERS = {rule: number for number, rule in _RULES.items() if number}
_OWNER = {
    "preset": RuleName.THRESHOLD,
    "threshold": RuleName.THRESHOLD,
    "posterior_threshold": RuleName.TYPICAL,
    "posterior_alpha": RuleName.TYPICAL,
}
"""The rule that each field belongs to."""


class SettledAcceptance(NamedTuple):
    """The acceptance settings in effect for a request."""

    acceptance: Acceptance
    preset: AcceptancePreset
    dynamic_temperature: bool


async def read_acceptance(
    options: SpeculationOptions, *, matters: bool, prompt: Callable[[], Awaitable[str]]
) -> SettledAcceptance:
    """Reads a request's acceptance rule and settles its defaults. Raises ServiceError with INVALID_ARGUMENT.

    matters: whether the rule makes a difference; without sampling noise or without drafts, every rule equals the
    coupled one. prompt: returns the prompt's text, for choosing a preset; a resumed request gives the same text.
    """
    asked = {field for field in _OWNER if (options.preset if field == "preset" else options.HasField(field))}
    if options.acceptance not in _RULES:
        raise invalid_field("speculation.acceptance", f"{options.acceptance} is not a rule that this verifier knows")
    rule = _RULES[options.acceptance]
    if not options.acceptance and "preset" in asked:
        rule = RuleName.THRESHOLD
    for field in sorted(asked):
        if _OWNER[field] is not rule:
            raise invalid_field(
                f"speculation.{field}", f"belongs to the rule {_OWNER[field].value}, but the rule is {rule.value}"
            )
    if options.dynamic_temperature and rule is RuleName.COUPLED:
        raise invalid_field("speculation.dynamic_temperature", "does not apply to the rule coupled")
    if options.preset not in AcceptancePreset.values():
        raise invalid_field("speculation.preset", f"{options.preset} is not a preset that this verifier knows")
    if {"preset", "threshold"} <= asked:
        raise invalid_field("speculation.threshold", "cannot be combined with speculation.preset")
    acceptance = _with_thresholds(rule, options)
    if not matters:
        return SettledAcceptance(COUPLED, AcceptancePreset.ACCEPTANCE_PRESET_UNSPECIFIED, False)
    preset = options.preset
    if rule is RuleName.THRESHOLD and "threshold" not in asked:
        if preset not in THRESHOLDS:
            preset = looks_like(await prompt())
        acceptance = Acceptance(rule, threshold=THRESHOLDS[preset])
    return SettledAcceptance(acceptance, preset, options.dynamic_temperature)


def tell_acceptance(stats: SpeculationStats, acceptance: Acceptance, preset: AcceptancePreset) -> None:
    """Records in a request's statistics what was in effect."""
    stats.acceptance = _NUMBERS[acceptance.rule]
    stats.preset = preset
    stats.lossless = acceptance.lossless
    if acceptance.rule is RuleName.THRESHOLD:
        stats.threshold = acceptance.threshold
    elif acceptance.rule is RuleName.TYPICAL:
        stats.posterior_threshold = acceptance.posterior_threshold
        stats.posterior_alpha = acceptance.posterior_alpha


def rule_number(acceptance: Acceptance) -> AcceptanceRule:
    """Returns the rule's number in the contract."""
    return _NUMBERS[acceptance.rule]


def _with_thresholds(rule: RuleName, options: SpeculationOptions) -> Acceptance:
    try:
        return Acceptance(rule, **given(Acceptance, options)).validate("speculation")
    except FieldError as error:
        raise invalid_field(error.field, error.description) from error
