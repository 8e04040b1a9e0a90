"""Entry points of this checkout, as an installation would have them."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.harness.checkout import ROOT


def write_entry_points(group: str, place: Path) -> Path:
    """Writes to a directory what an installation says to Python about a group of entry points; returns the directory,
    which belongs on Python's path."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    said = place / "draftwire_here-0.dist-info"
    said.mkdir(parents=True)
    (said / "METADATA").write_text("Metadata-Version: 2.1\nName: draftwire-here\nVersion: 0\n")
    lines = [f"[{group}]", *(f"{name} = {entry}" for name, entry in project["entry-points"][group].items())]
    (said / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return place
