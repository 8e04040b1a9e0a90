"""Builds the compiled part of the engine when a checkout is installed or a wheel of the services is made.

Without a C compiler the package works as well, slower on CPUs.

DRAFTWIRE_WHEEL_PLATFORM, as manylinux_2_17_aarch64, names the platform that `$CC` compiles for, where it is not this
machine's (scripts/build_wheels.py). The wheel then must have the compiled part, and the checkout's own stays as it is.
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

KERNELS = "speculative_engine/kernels"
"""Directory of the compiled library in a checkout; a distribution's pyproject.toml names its own."""


class CompiledEngine(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the C files of the engine's kernels into one library, which `kernels/library.py` loads."""

    PLUGIN_NAME = "custom"

    _elsewhere: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add the library to the wheel."""
        if "kernels" not in self.config and version != "editable":
            raise RuntimeError(
                "a checkout can be installed editable only; python -m scripts.distributions writes the source trees of "
                "its distributions"
            )
        kernels = _load(Path(self.root) / self.config.get("kernels", KERNELS) / "build.py")
        name = str(kernels.LIBRARY.relative_to(self.root))
        platform = os.environ.get("DRAFTWIRE_WHEEL_PLATFORM")
        if platform:
            self._elsewhere = tempfile.TemporaryDirectory()
            library = Path(self._elsewhere.name) / kernels.LIBRARY.name
            kernels.build(library)
            build_data["force_include"][str(library)] = name
        else:
            try:
                kernels.build()
            except kernels.BuildError as error:
                print(f"the engine will be slower on CPUs: {error}", file=sys.stderr)
                if kernels.LIBRARY.exists() and kernels.source_hash().encode() not in kernels.LIBRARY.read_bytes():
                    kernels.LIBRARY.unlink()  # of an earlier build, of other sources: it would be refused at load
                return
            build_data["artifacts"].append(name)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform or sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled for another platform."""
        if self._elsewhere is not None:
            self._elsewhere.cleanup()


def _load(file: Path) -> ModuleType:
    """The module of a file: an isolated build does not have this folder on its path."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
