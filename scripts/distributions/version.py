"""The version of a checkout, as hatch-vcs derives it from git."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def version_of(root: Path) -> str:
    """Returns it; needs hatchling and hatch-vcs."""
    command = [sys.executable, "-m", "hatchling", "version"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
