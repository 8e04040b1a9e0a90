"""Writes the list of what an installation of draftwire is made of (SBOM), in CycloneDX's format.

    python -m scripts.release.sbom CYCLONEDX_PY [--out dist] [--version 0.1.0]

CYCLONEDX_PY is the program cyclonedx-py, which lies in an environment of its own: `make sbom` sets it up. Listed are
the packages that are installed here, without those for draftwire's development, and the libraries of the page.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from draftwire.version import __version__
from scripts.release.packages import ROOT, brought, vendored


def sbom(program: Path, version: str) -> dict[str, Any]:
    """Returns the list for a version of draftwire. Raises RuntimeError if it lacks a package."""
    command = [str(program), "environment", "--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible"]
    done = subprocess.run([*command, sys.executable], capture_output=True, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    names = brought()
    listed = only(told, names, version)
    if missing := names - {str(canonicalize_name(each["name"])) for each in listed["components"]}:
        raise RuntimeError(f"the list lacks {', '.join(sorted(missing))}")
    return listed | {"components": [*listed["components"], *(component(each) for each in vendored())]}


def component(package: dict[str, str]) -> dict[str, Any]:
    """Returns a package of npm as a component of the list."""
    url = f"pkg:npm/{package['name'].replace('@', '%40')}@{package['version']}"
    digest = base64.b64decode(package["integrity"].removeprefix("sha512-")).hex()
    return {
        "type": "library",
        "bom-ref": url,
        "name": package["name"],
        "version": package["version"],
        "licenses": [{"license": {"id": package["license"]}}],
        "hashes": [{"alg": "SHA-512", "content": digest}],
        "purl": url,
    }


def only(told: dict[str, Any], names: Collection[str], version: str) -> dict[str, Any]:
    """Returns a list with the components of these names alone, and with a version of draftwire."""
    components = [each for each in told["components"] if canonicalize_name(each["name"]) in names]
    root = told["metadata"]["component"] | {"version": version}
    kept = {each["bom-ref"] for each in components} | {root["bom-ref"]}
    dependencies = [
        each | ({"dependsOn": [ref for ref in each["dependsOn"] if ref in kept]} if "dependsOn" in each else {})
        for each in told["dependencies"]
        if each["ref"] in kept
    ]
    return told | {
        "metadata": told["metadata"] | {"component": root},
        "components": components,
        "dependencies": dependencies,
    }


def main() -> None:
    """Writes the list and prints its path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="cyclonedx-py")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the list (default: dist)")
    parser.add_argument("--version", default=__version__, help="version of draftwire (default: the installed one)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"draftwire-{options.version}.cdx.json"
    file.write_text(json.dumps(sbom(options.program, options.version), indent=2) + "\n", encoding="utf-8")
    print(file)


if __name__ == "__main__":
    main()
