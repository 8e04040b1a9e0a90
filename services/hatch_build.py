"""The build of the services' distribution from the checkout: metadata, packages, the compiled part of the engine.

The checkout itself compiles by it, too, when it is installed. Without a C compiler the packages work as well, slower on
CPUs.

DRAFTWIRE_WHEEL_PLATFORM, as manylinux_2_17_aarch64, names the platform that `$CC` compiles for, if it is not this
machine's (scripts/release/build_wheels.py). The wheel then must have the compiled part, and the checkout's own stays
as it is.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.core import ProjectMetadata
from hatchling.metadata.plugin.interface import MetadataHookInterface
from hatchling.plugin.manager import PluginManager

NAME = "draftwire-services"
PACKAGES = (
    "draftwire_core",
    "verifier_service",
    "drafter_service",
    "gateway_service",
    "draftwire_vllm",
    "draftwire_sglang",
)
KERNELS = "draftwire_core/engine/kernels"
"""Folder of the compiled library."""
SAME = ("requires-python", "license", "keywords", "classifiers")
"""Metadata that are the checkout's."""
EXTRAS = ("serve", "gateway", "vllm", "sglang", "gpu", "tracing")
"""Extras of this distribution."""


class Metadata(MetadataHookInterface):
    """Takes the metadata from the checkout's pyproject.toml, and the version from its git.

    A source distribution has them already, in PKG-INFO, so hatchling does not ask for them there.
    """

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Adds the fields that the project file calls dynamic."""
        root = Path(self.root).parent
        checkout = ProjectMetadata(str(root), PluginManager())
        project = checkout.core_raw_metadata
        metadata.update({key: project[key] for key in SAME})
        metadata["version"] = checkout.version
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": (root / "README.md").read_text(encoding="utf-8"),
        }
        metadata["dependencies"] = [f"draftwire=={checkout.version}"]
        metadata["optional-dependencies"] = {extra: project["optional-dependencies"][extra] for extra in EXTRAS}


class CompiledEngine(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the C files of the engine's kernels into one library, which `kernels/library.py` loads.

    In the services' own project it adds the packages, too. They are next to its folder, in a source distribution inside
    it.
    """

    PLUGIN_NAME = "custom"

    _elsewhere: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the packages, compile, and add the library to the wheel."""
        root = Path(self.root)
        place = root if (root / KERNELS).exists() else root.parent
        if self.metadata.name == NAME and (self.target_name == "wheel" or place != root):
            build_data["force_include"].update(_files(place))
        if self.target_name == "wheel":
            self._compile(place, build_data)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled for another platform."""
        if self._elsewhere is not None:
            self._elsewhere.cleanup()

    def _compile(self, place: Path, build_data: dict[str, Any]) -> None:
        kernels = _load(place / KERNELS / "build.py")
        library = kernels.LIBRARY
        name = str(library.relative_to(place))
        platform = os.environ.get("DRAFTWIRE_WHEEL_PLATFORM")
        if platform:
            self._elsewhere = tempfile.TemporaryDirectory()
            library = Path(self._elsewhere.name) / library.name
            kernels.build(library)
        elif not kernels.is_built():
            try:
                kernels.build()
            except kernels.BuildError as error:
                print(f"the engine will be slower on CPUs: {error}", file=sys.stderr)
                library.unlink(missing_ok=True)  # of an earlier build, of other sources: it would be refused at load
                return
        if platform or self.metadata.name == NAME:
            build_data["force_include"][str(library)] = name
        else:
            build_data["artifacts"].append(name)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform or sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _files(place: Path) -> dict[str, str]:
    """The files of the packages, each with its path in a distribution."""
    return {
        str(file): str(file.relative_to(place))
        for package in PACKAGES
        for file in sorted((place / package).rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts and ".so" not in file.suffixes
    }


def _load(file: Path) -> ModuleType:
    """The module of a file: an isolated build does not have this folder on its path."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
