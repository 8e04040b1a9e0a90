"""The machine and the software of a measurement: processor, cores, load, versions, commit."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
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
_ZEN_MODELS = {
    23: [(0x30, "Zen"), (0x50, "Zen 2"), (0x60, "Zen"), (0x100, "Zen 2")],
    25: [(0x10, "Zen 3"), (0x20, "Zen 4"), (0x60, "Zen 3"), (0x100, "Zen 4")],
    26: [(0x50, "Zen 5"), (0x60, "Zen 6"), (0x80, "Zen 5"), (0x100, "Zen 6")],
}
"""AMD's cores by family: each name holds for the models below its bound (Linux, `arch/x86/kernel/cpu/amd.c`)."""

_INTEL_PRODUCTS = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 BF16, no AMX", "avx512f": "AVX-512", "avx2": "AVX2"}
"""The names of Intel's cores here: the widest of these that a processor has."""


def cpu_name() -> str:
    """Returns the processor's model name as Linux reports it, with the kind of core that decides its figures.

    Virtual machines often report "AMD EPYC" or "Intel Xeon" alone. The kind of core is appended in parentheses: AMD's
    by family and model, Intel's by its instruction sets. Elsewhere than on Linux, what Python knows.
    """
    facts = _cpu_facts(_CPUINFO.read_text()) if _CPUINFO.exists() else {}
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    return named_with_core(facts)


def named_with_core(facts: Mapping[str, str]) -> str:
    """Returns a processor's name with its kind of core, from the fields of `/proc/cpuinfo`."""
    name, vendor = facts["model name"], facts.get("vendor_id")
    if vendor == "AuthenticAMD":
        models = _ZEN_MODELS.get(int(facts["cpu family"]), [])
        core = next((core for bound, core in models if int(facts["model"]) < bound), "")
    elif vendor == "GenuineIntel":
        flags = facts["flags"].split()
        core = next((core for flag, core in _INTEL_PRODUCTS.items() if flag in flags), "")
    else:
        core = ""
    return f"{name} ({core})" if core else name


def cpu_features() -> list[str]:
    """Returns the processor's instruction sets that matter to kernels; empty where Linux does not list them."""
    facts = _cpu_facts(_CPUINFO.read_text()) if _CPUINFO.exists() else {}
    flags = facts.get("flags", facts.get("Features", "")).split()
    return [name for flag, name in _FEATURES.items() if flag in flags]


def gpu_name(device: str) -> str | None:
    """Returns the name of a GPU, such as `cuda` or `cuda:1`; None for the CPU."""
    if not device.startswith("cuda"):
        return None
    import torch  # most benchmarks run without it in their own process

    return str(torch.cuda.get_device_name(device))


def _cpu_facts(text: str) -> dict[str, str]:
    """The fields of the first processor in `/proc/cpuinfo`."""
    lines = (line.split(":", 1) for line in text.split("\n\n", maxsplit=1)[0].splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in lines}


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
