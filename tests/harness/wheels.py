"""Builds the release's wheels for tests."""

import os
import subprocess
import sys
from pathlib import Path

from draftwire.version import __version__
from tests.harness.checkout import ROOT
from tests.harness.waiting import PATIENCE


def build_wheels(out: Path, *flags: str) -> list[Path]:
    """Runs scripts/build_wheels.py; returns the wheels' paths.

    Their version is the installed one, so that the build leaves the checkout's as it is for tests beside it.
    """
    command = [sys.executable, str(ROOT / "scripts" / "build_wheels.py"), "--out", str(out), *flags]
    settings = os.environ | {"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_DRAFTWIRE": __version__}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return list(map(Path, done.stdout.split()))
