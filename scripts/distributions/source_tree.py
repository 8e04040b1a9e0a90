"""The source tree of a distribution, made from the checkout's."""

from __future__ import annotations

import shutil
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

from .project_file import SDK, SERVICES, project_file
from .references import Move

PACKAGE = "draftwire_services"
"""The package of the services' distribution, which the checkout's packages move into."""
OWN_NAME = ("draftwire", "draftwire_vllm", "draftwire_sglang")
"""Packages that keep their place: their names are the project's own, and users' programs and settings have them."""
WORDS = ("gateway",)
MODULES = (("sdk/draftwire/cli/serve/gateway_process.py", "gateway"),)
"""See Move."""

_GENERATED = "sdk/draftwire/v1/"
"""Refers to nothing outside itself, and has names of protobuf files that are no modules."""
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.so", "*.so.new", "version.txt*", "*.egg-info")
_DOCSTRING = '"""The services of draftwire: verifier, drafter and gateway, and what they are made of."""\n'


def packages(project: dict[str, Any]) -> list[str]:
    """Returns the folders of the checkout's packages."""
    found: list[str] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return found


def write_tree(name: str, root: Path, out: Path, version: str) -> Path:
    """Writes the tree of a distribution, SDK or SERVICES, into the folder `out`; returns its path.

    Raises UnknownReferenceError if a file refers to a package in a way that cannot be rewritten.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    folders = packages(project)
    tree = out / f"{name}-{version}"
    if tree.exists():
        shutil.rmtree(tree)
    tree.mkdir(parents=True)
    moving = [folder for folder in folders if Path(folder).name not in OWN_NAME]
    move = Move(PACKAGE, moving, partial(_exists, root), WORDS, MODULES)
    for folder in folders:
        package = Path(folder).name
        if (package == "draftwire") == (name == SDK):
            _copy(root, folder, tree / package if package in OWN_NAME else tree / PACKAGE / package, move)
    if name == SDK:
        (tree / "draftwire/version.txt").write_text(f"{version}\n", encoding="ascii")
    else:
        (tree / PACKAGE / "__init__.py").write_text(_DOCSTRING, encoding="utf-8")
        shutil.copy(root / "hatch_build.py", tree)
    inside = {folder.partition("/")[0] for folder in folders} | {"hatch_build.py"}
    also = [each.removeprefix("/") for each in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]]
    for each in ("README.md", "LICENSE", *(each for each in also if each.partition("/")[0] not in inside)):
        if (root / each).is_dir():
            shutil.copytree(root / each, tree / each)
        elif (root / each).exists():  # the build of an image has only what a wheel needs
            shutil.copy(root / each, tree / each)
    entries = partial(_moved, move)
    (tree / "pyproject.toml").write_text(project_file(name, project, version, entries), encoding="utf-8")
    return tree


def _copy(root: Path, folder: str, target: Path, move: Move) -> None:
    """Copies a package, with its references rewritten."""
    shutil.copytree(root / folder, target, ignore=_LEFT_OUT)
    for file in sorted(target.rglob("*.py")):
        name = f"{folder}/{file.relative_to(target).as_posix()}"
        if not name.startswith(_GENERATED):
            file.write_text(move.rewrite(file.read_text(encoding="utf-8"), name), encoding="utf-8")


def _exists(root: Path, module: str) -> bool:
    """Whether a dotted name is a module of the checkout."""
    place = root.joinpath(*module.split("."))
    return (place / "__init__.py").exists() or place.with_suffix(".py").exists()


def _moved(move: Move, entry: str) -> str:
    """An entry point, as `gateway.__main__:main`, after the move."""
    return f"{move.into}.{entry}" if entry.partition(".")[0] in move.packages else entry


__all__ = ["PACKAGE", "SDK", "SERVICES", "packages", "write_tree"]
