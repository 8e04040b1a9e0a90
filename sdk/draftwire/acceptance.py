"""Rules of acceptance and presets by their names and by their numbers in the contract."""

from __future__ import annotations

from draftwire.speculation import Acceptance, Preset
from draftwire.v1.speculation_pb2 import AcceptancePreset, AcceptanceRule

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
RULE_NAMES = {number: name for name, number in RULES.items()}
PRESET_NAMES = {number: name for name, number in PRESETS.items()}
