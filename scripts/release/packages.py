"""The packages that an installation of draftwire contains, without those for its development.

    python -m scripts.release.packages

prints them as requirements of their versions, as far as they are installed here.
"""

from __future__ import annotations

import json
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
FOR_DEVELOPERS = ("dev", "docs")
"""Extras whose packages no user gets."""


_VENDORED = ROOT / "gateway_service/console/static/vendor/packages.json"


def vendored() -> list[dict[str, str]]:
    """Returns the npm packages whose files the gateway serves: `name`, `version`, `license` and `integrity` of each."""
    listed: list[dict[str, str]] = json.loads(_VENDORED.read_text(encoding="utf-8"))
    return listed


def brought() -> set[str]:
    """Returns the names of the packages that the dependencies and extras of the project require, all in canonical form.

    Packages that are not installed are left out, with what they would require: those of other systems and of `gpu`.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [needed for extra, needed in project["optional-dependencies"].items() if extra not in FOR_DEVELOPERS]
    waiting = [
        Requirement(each) for each in [*project["dependencies"], *(each for needed in extras for each in needed)]
    ]
    done: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        new = {(name, extra) for extra in ("", *requirement.extras)} - done
        try:
            needed = [Requirement(each) for each in metadata.requires(name) or []] if new else []
        except metadata.PackageNotFoundError:
            continue
        done |= new
        waiting += [
            each
            for each in needed
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for _, extra in new)
        ]
    return {name for name, _ in done}


def pinned() -> list[str]:
    """Returns the packages as requirements of the versions that are installed here, without the local part."""
    return [f"{name}=={metadata.version(name).partition('+')[0]}" for name in sorted(brought())]


if __name__ == "__main__":
    print("\n".join(pinned()))
