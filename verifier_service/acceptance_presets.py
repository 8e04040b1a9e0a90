"""Thresholds by what is written, and what a prompt looks like."""

from __future__ import annotations

import re

from draftwire.v1.speculation_pb2 import AcceptancePreset

THRESHOLDS = {
    AcceptancePreset.ACCEPTANCE_PRESET_CODE: 0.75,
    AcceptancePreset.ACCEPTANCE_PRESET_JSON: 0.65,
    AcceptancePreset.ACCEPTANCE_PRESET_NARRATIVE: 0.5,
}
"""How sure the target has to be of a draft token: the more one wrong token breaks, the surer."""

_MENTIONS_JSON = re.compile(r"\bjson\b", re.I)
_JSON = re.compile(r"^\s*[\[{]\s*[\"\[{\]}\d]|\"\s*:\s*[\"\[{\d]")
_MENTIONS_CODE = re.compile(r"```|\b(code|python|javascript|typescript|java|rust|golang|sql|c\+\+)(?!\w)", re.I)
_CODE_LINE = re.compile(
    r"^\s*(def|class|import|from \S+ import|return|func|fn|function|const|let|var|public|private|static)\b"
    r"|^\s*(//|/\*|#!|#include|@\w)|[;{}]\s*$|\)\s*(->.*)?:\s*$|^\s*[\w.]+\s*=[^=]"
)
_LEAST_CODE = 0.4
"""Part of the lines that are code in a text that is taken for it."""


def looks_like(prompt: str) -> AcceptancePreset:
    """The preset for a prompt: JSON where it is spoken of or written, else code, else narrative."""
    if _MENTIONS_JSON.search(prompt) or _JSON.search(prompt):
        return AcceptancePreset.ACCEPTANCE_PRESET_JSON
    lines = [line for line in prompt.splitlines() if line.strip()]
    code = sum(_CODE_LINE.search(line) is not None for line in lines)
    if _MENTIONS_CODE.search(prompt) or (lines and code >= _LEAST_CODE * len(lines)):
        return AcceptancePreset.ACCEPTANCE_PRESET_CODE
    return AcceptancePreset.ACCEPTANCE_PRESET_NARRATIVE
