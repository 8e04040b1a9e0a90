"""The `pyproject.toml` of a distribution, made from the checkout's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

SDK, SERVICES = "draftwire", "draftwire-services"
"""The names of the distributions."""

DESCRIPTIONS = {
    SDK: "Speculative decoding over the wire: the SDK and the command line",
    SERVICES: "Speculative decoding over the wire: verifier, drafter and gateway",
}
EXTRAS = {
    SDK: ("tracing", "bench"),
    SERVICES: ("serve", "gateway", "vllm", "sglang", "gpu", "tracing"),
}
"""The extras that a distribution takes from the checkout."""
SDK_SCRIPTS = ("draftwire",)
KERNELS = "draftwire_services/speculative_engine/kernels"
"""Directory of the engine's compiled library."""


def project_file(name: str, checkout: dict[str, Any], version: str, moved: Callable[[str], str]) -> str:
    """Returns the text of the file. checkout: the checkout's, read. moved: rewrites an entry point."""
    project = checkout["project"]
    known = project["optional-dependencies"]
    extras = {extra: list(known[extra]) for extra in EXTRAS[name]}
    if name == SDK:
        dependencies = list(project["dependencies"])
        # `pip install draftwire[serve]` is what people try first.
        extras |= {extra: [f"{SERVICES}[{extra}]=={version}"] for extra in EXTRAS[SERVICES] if extra not in extras}
    else:
        dependencies = [f"{SDK}=={version}"]
    scripts = {
        each: moved(entry) for each, entry in project["scripts"].items() if (each in SDK_SCRIPTS) == (name == SDK)
    }
    needed = [each for each in checkout["build-system"]["requires"] if not each.startswith("hatch-vcs")]
    parts = [
        _table("build-system", {"requires": needed, "build-backend": "hatchling.build"}),
        _table(
            "project",
            {"name": name, "version": version, "description": DESCRIPTIONS[name]}
            | {
                key: project[key]
                for key in ("readme", "requires-python", "license", "license-files", "keywords", "classifiers")
            }
            | {"dependencies": dependencies},
        ),
        _table("project.optional-dependencies", extras),
        _table("project.scripts", scripts),
    ]
    if name == SDK:
        parts.append(
            _table(
                "tool.hatch.build.targets.wheel", {"packages": ["draftwire"], "artifacts": ["draftwire/version.txt"]}
            )
        )
        parts.append(_table("tool.hatch.build.targets.sdist", {"artifacts": ["draftwire/version.txt"]}))
        return "\n".join(parts)
    for group, entries in project["entry-points"].items():
        parts.append(_table(f'project.entry-points."{group}"', {each: moved(entry) for each, entry in entries.items()}))
    parts.append(
        _table(
            "tool.hatch.build.targets.wheel", {"packages": ["draftwire_services", "draftwire_vllm", "draftwire_sglang"]}
        )
    )
    parts.append(_table("tool.hatch.build.targets.wheel.hooks.custom", {"kernels": KERNELS}))
    return "\n".join(parts)


def _table(name: str, values: dict[str, Any]) -> str:
    """A table of TOML, in which strings and lists of strings are written as in JSON."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join([f"[{name}]", *lines, ""])
