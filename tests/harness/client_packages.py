"""Packages of other people's clients, which tests run as their users do: outside the checkout, at pinned versions.

Each client has a folder in the cache, since no two of them need agree on the versions of others. It is made by the
first test that needs it. Where a registry does not give the packages, tests are skipped with the reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.harness.suite.skipped import skip_without
from tests.harness.waiting import LONG_PATIENCE

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "draftwire-tests"
_INSTALL_SECONDS = 600.0
"""Time limit of an installation: a package may be tens of megabytes, and npm is slow on a busy machine."""
_MOST_REASON = 300
"""Most characters of a registry's reason."""


def python_packages(requirements: Path) -> Path:
    """Returns Python in a virtual environment with the packages of a file of pins, named after their client."""
    pins = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]

    def make(folder: Path) -> None:
        _install([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
        _install([*pip, "install", "--quiet", "--retries", "1", "--requirement", str(requirements)])

    return _made(f"{requirements.stem}-{pins}", make) / "bin" / "python"


def python_wheel(pin: str) -> Path:
    """Returns a folder with the files of one package of Python, without those that it needs. pin: as name==version."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--retries", "1"]
    return (
        _made(
            pin.replace("==", "-"), lambda folder: _install([*pip, "--no-deps", "--target", str(folder / "files"), pin])
        )
        / "files"
    )


def node_packages(name: str, *pins: str) -> Path:
    """Returns a folder whose node_modules has packages. name: of their client. pins: such as zod@4.6.7."""
    skip_without("node", "npm")
    versions = hashlib.sha256(" ".join(pins).encode()).hexdigest()[:12]
    install = ["npm", "install", "--loglevel", "error", "--no-audit", "--no-fund"]
    return _made(f"{name}-{versions}", lambda folder: _install([*install, "--prefix", str(folder), *pins]))


def run_client(command: Sequence[str | Path], **variables: str) -> Any:
    """Runs a client, and returns what it prints as JSON. variables: added to its environment."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, env=environment | variables, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=LONG_PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """Returns the folder of a name, which is made if it is not there. A folder that is there is whole."""
    folder = CACHE / name
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=CACHE))
    try:
        make(making)
        making.rename(folder)
    except OSError:
        if not folder.exists():  # another run has made it meanwhile
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return folder


def _install(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"packages of clients are not installed within {_INSTALL_SECONDS:g} seconds: {' '.join(command)}")
    if done.returncode != 0:
        told = [line for line in done.stderr.splitlines() if "error" in line.lower()] or [
            f"exit status {done.returncode}"
        ]
        pytest.skip(f"packages of clients are not installed: {' '.join(told)[:_MOST_REASON]}")
