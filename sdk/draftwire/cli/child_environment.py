"""The environment of child processes of a command."""

from __future__ import annotations

import os
import sys


def child_environment() -> dict[str, str]:
    """Returns the environment of a child process in Python, which imports what this process can import."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
