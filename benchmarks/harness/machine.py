"""The machine and the software of a measurement: processor, cores, load, versions, commit."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.harness.checkout import ROOT

_CPUINFO = Path("/proc/cpuinfo")
_FEATURES = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX-512 BF16",
    "amx_bf16": "AMX BF16",
    "asimd": "NEON",
    "sve": "SVE",
}
"""Instruction sets that decide which kernels run, by their names in Linux."""


def cpu_name() -> str:
    """Returns the processor's model name as Linux reports it; elsewhere what Python knows."""
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    """Returns the processor's instruction sets that matter to kernels; empty where Linux does not list them."""
    if not _CPUINFO.exists():
        return []
    listed = [line for line in _CPUINFO.read_text().splitlines() if line.startswith(("flags", "Features"))]
    flags = set(listed[0].split(":", 1)[1].split()) if listed else set()
    return [name for flag, name in _FEATURES.items() if flag in flags]


def _git(*arguments: str) -> str:
    if shutil.which("git") is None:
        return ""
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, cwd=ROOT).stdout.strip()


def _version(package: str) -> str:
    """The version of an installed package; "none" of one that is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def commit() -> str:
    """Returns the abbreviated commit of the checkout, with `-dirty` where files have changed; "unknown" without git."""
    return _git("describe", "--always", "--dirty") or "unknown"


def commit_time() -> str | None:
    """Returns the time of the checkout's commit, in ISO 8601; None without git."""
    return _git("log", "-1", "--format=%cI") or None


def machine() -> dict[str, str]:
    """Returns processor, cores, load, versions and commit."""
    return {
        "processor": cpu_name(),
        "cores": str(os.cpu_count()),
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "transformers": _version("transformers"),
        "grpcio": _version("grpcio"),
        "commit": commit(),
    }
