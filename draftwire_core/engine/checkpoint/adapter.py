"""Adapters (LoRA and its relatives) of the library peft, which change a base model and are none themselves."""

from __future__ import annotations

import json
from pathlib import Path

CONFIG, WEIGHTS = "adapter_config.json", ("adapter_model.safetensors", "adapter_model.bin")
_MOST = 1 << 20
_LONGEST_NAME = 200


def adapter_refusal(directory: Path) -> str | None:
    """Says that a directory is an adapter, of which model, and how to serve the two; None if it is no adapter."""
    config = directory / CONFIG
    if not config.is_file() and not any((directory / name).is_file() for name in WEIGHTS):
        return None
    kind, base = "", ""
    try:
        if config.stat().st_size <= _MOST:
            fields = json.loads(config.read_text(encoding="utf-8"))
            kind = f" ({str(fields['peft_type'])[:_LONGEST_NAME]})"
            base = str(fields["base_model_name_or_path"] or "")[:_LONGEST_NAME]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # what it says of itself is a part of the message only
    of = f" of {base}" if base else ""
    return (
        f"is an adapter{of}{kind}, not a model: merge it into its base model (merge_and_unload of the package peft), "
        "save the result, and serve that"
    )
