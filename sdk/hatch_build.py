"""The build of the SDK's distribution from the checkout: metadata, and the version that `draftwire.version` reads.

A source distribution has its metadata already, in PKG-INFO, so hatchling does not ask for them there.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.core import ProjectMetadata
from hatchling.metadata.plugin.interface import MetadataHookInterface
from hatchling.plugin.manager import PluginManager

SAME = ("requires-python", "license", "keywords", "classifiers", "dependencies")
"""Metadata that are the checkout's."""
EXTRAS = ("tracing", "bench")
"""Extras of this distribution."""
SERVICES = ("serve", "gateway", "vllm", "sglang", "gpu")
"""Extras of `draftwire-services`, which require it: `pip install draftwire[serve]` is what people try first."""


class Metadata(MetadataHookInterface):
    """Takes the metadata from the checkout's pyproject.toml, and the version from its git."""

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
        known = project["optional-dependencies"]
        metadata["optional-dependencies"] = {extra: known[extra] for extra in EXTRAS} | {
            extra: [f"draftwire-services[{extra}]=={checkout.version}"] for extra in SERVICES
        }


class Version(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the file with the version; the checkout's own stays as it is."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file."""
        self._place = tempfile.TemporaryDirectory()
        file = Path(self._place.name) / "version.txt"
        file.write_text(f"{self.metadata.version}\n", encoding="ascii")
        build_data["force_include"][str(file)] = "draftwire/version.txt"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove it where it was written."""
        self._place.cleanup()
