"""The build backend of a checkout (PEP 517): what pip and build call.

An editable installation is of the whole checkout, with all its packages. A wheel or source distribution is of the SDK
alone, so that `pip install .` puts no generic names beside those of other projects.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hatchling.build
from hatchling.build import build_editable, get_requires_for_build_editable

from .project_file import SDK
from .source_tree import write_tree
from .version import version_of

__all__ = ["build_editable", "build_sdist", "build_wheel", "get_requires_for_build_editable"]


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Builds the SDK's wheel into a folder; returns its name."""
    out = str(Path(wheel_directory).resolve())
    with _in_tree():
        return hatchling.build.build_wheel(out, config_settings)


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """Builds the SDK's source distribution into a folder; returns its name."""
    out = str(Path(sdist_directory).resolve())
    with _in_tree():
        return hatchling.build.build_sdist(out, config_settings)


@contextmanager
def _in_tree() -> Iterator[None]:
    """Works in the SDK's own tree. Backends are called with the checkout as the working directory."""
    root = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(write_tree(SDK, root, Path(place), version_of(root)))
        try:
            yield
        finally:
            os.chdir(root)
