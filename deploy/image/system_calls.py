"""The default filter of system calls (seccomp) of container engines, in runc's form."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

PROFILE = Path("/usr/share/containers/seccomp.json")
"""Podman's profile, which comes with buildah; Docker's derives from the same list."""
ARCHITECTURES = {"x86_64": ("amd64", "SCMP_ARCH_X86_64"), "aarch64": ("arm64", "SCMP_ARCH_AARCH64")}
"""This machine's architecture, with its two names in the profile."""


def default_filter() -> dict[str, Any]:
    """Returns the filter of a container without capabilities on this machine. Raises KeyError on an unknown
    architecture."""
    profile = json.loads(PROFILE.read_text())
    name, architecture = ARCHITECTURES[platform.machine()]
    (others,) = [each["subArchitectures"] for each in profile["archMap"] if each["architecture"] == architecture]
    rules = [rule for rule in profile["syscalls"] if _is_for(rule, name)]
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": [architecture, *others],
        "syscalls": [
            {key: rule[key] for key in ("names", "action", "errnoRet", "args") if rule.get(key)} for rule in rules
        ],
    }


def _is_for(rule: dict[str, Any], architecture: str) -> bool:
    """Whether a rule applies to a container without capabilities on this architecture."""
    included, excluded = rule["includes"], rule["excludes"]
    return (
        not included.get("caps")
        and architecture in included.get("arches", (architecture,))
        and architecture not in excluded.get("arches", ())
    )
