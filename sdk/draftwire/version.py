"""The version of draftwire: from git, recorded by the build; a fixed one in a source tree without a build."""

from __future__ import annotations

from pathlib import Path

_BUILT = Path(__file__).with_name("version.txt")
"""Written by the build, and by make in a checkout; not in git."""
_UNBUILT = "0.1.0.dev0"


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip() or _UNBUILT
    except FileNotFoundError:
        return _UNBUILT


__version__ = _read(_BUILT)
