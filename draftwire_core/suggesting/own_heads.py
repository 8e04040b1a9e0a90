"""Heads and draft layers that lie in a target's own directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwire_core.engine.checkpoint.plain_files import json_object

EAGLE, DFLASH, MEDUSA = "eagle3", "dflash", "medusa"
_CONFIG = "config.json"
_MOST_FOLDERS = 64
_WEIGHTS = (".safetensors", ".bin", ".pt")


@dataclass(frozen=True, slots=True)
class OwnHead:
    """A head in a folder of the target's directory."""

    kind: str
    """EAGLE, DFLASH or MEDUSA."""
    directory: Path
    """The head's folder."""
    bytes: int
    """Bytes of the head's weights."""


def own_heads(directory: Path) -> list[OwnHead]:
    """Returns the heads in the folders of a checkpoint's directory, in the order of their names."""
    return list(_found(directory))


def kind_of(fields: Mapping[str, Any]) -> str | None:
    """Returns the kind of the drafter that a config.json describes; None for a model."""
    architectures = fields.get("architectures")
    named = " ".join(map(str, architectures)) if isinstance(architectures, list) else ""
    library = fields.get("speculators_model_type")
    if library == DFLASH or "DFlash" in named:
        return DFLASH
    if library in (EAGLE, "peagle") or "Eagle3" in named:
        return EAGLE
    return MEDUSA if "medusa_num_heads" in fields else None


def _found(directory: Path) -> Iterator[OwnHead]:
    folders = sorted(each for each in directory.iterdir() if each.is_dir())[:_MOST_FOLDERS]
    for folder in folders:
        if not (folder / _CONFIG).is_file():
            continue
        try:
            kind = kind_of(json_object(folder / _CONFIG))
            size = sum(each.stat().st_size for each in folder.iterdir() if each.suffix in _WEIGHTS and each.is_file())
        except (OSError, ValueError):
            continue  # a folder of something else
        if kind is not None and size:
            yield OwnHead(kind, folder, size)
