"""The held-out prompts of the bundled models."""

from __future__ import annotations

import json
from pathlib import Path

MODELS = Path(__file__).resolve().parents[2] / "models"


def held_out_prompts(count: int) -> list[str]:
    """The first `count` prompts. Raises ValueError if there are fewer."""
    lines = (MODELS / "prompts.jsonl").read_text().splitlines()
    if len(lines) < count:
        raise ValueError(f"there are {len(lines)} prompts, not {count}")
    return [json.loads(line)["text"] for line in lines[:count]]
