"""Description of the machine and software of a measurement."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import draftwire
from draftwire.version import __version__

_PACKAGES = ("grpcio", "torch", "transformers")


def machine() -> dict[str, str]:
    """Returns processor, cores, load, versions and commit of this machine, as far as they can be determined."""
    found = {"processor": _processor(), "cores": str(os.cpu_count())}
    if hasattr(os, "getloadavg"):
        found["load"] = " ".join(f"{load:.1f}" for load in os.getloadavg())
    found |= {"python": platform.python_version(), "draftwire": __version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # the command line runs without the serving libraries
            continue
    commit = _commit()
    return found | {"commit": commit} if commit else found


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    """Returns the checkout's commit; empty without a checkout or git."""
    package = Path(draftwire.__file__).parent
    # An installation may be within the repository of another project.
    if not (package.parents[1] / "pyproject.toml").is_file():
        return ""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=False,
            cwd=package,
        )
    except FileNotFoundError:
        return ""
    return described.stdout.strip()
