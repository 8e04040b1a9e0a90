"""Imports in a new process that lacks packages."""

import subprocess
import sys

from tests.harness.checkout import ROOT
from tests.harness.waiting import LONG_PATIENCE

_PROGRAM = """
import importlib, sys
modules, lacking = (text.split() for text in sys.argv[1:])
for name in lacking:
    sys.modules[name] = None  # an import of it fails
for name in modules:
    importlib.import_module(name)
"""


def problem_without(lacking: str, modules: str) -> str:
    """Returns what a process says in which importing `modules` fails although only `lacking` packages are absent; both
    are names between spaces. Empty if it succeeds."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, modules, lacking],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONG_PATIENCE,
        check=False,
    )
    return done.stderr or "no reason given" if done.returncode else ""
