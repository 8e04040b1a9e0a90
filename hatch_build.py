"""Builds the compiled part of the engine when the package is installed or a wheel is made.

Without a C compiler the package works as well, slower on CPUs.
"""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = "speculative_engine/kernels/build.py"


class CompiledEngine(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the C files of the engine's kernels into one library, which `kernels/library.py` loads."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add the library to the wheel."""
        kernels = _load(Path(self.root) / BUILD)
        try:
            kernels.build()
        except kernels.BuildError as error:
            print(f"the engine will be slower on CPUs: {error}", file=sys.stderr)
            if kernels.LIBRARY.exists() and kernels.source_hash().encode() not in kernels.LIBRARY.read_bytes():
                kernels.LIBRARY.unlink()  # of an earlier build, of other sources: it would be refused at load
            return
        build_data["artifacts"].append(str(kernels.LIBRARY.relative_to(self.root)))
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"


def _load(file: Path) -> ModuleType:
    """The module of a file: an isolated build does not have this folder on its path."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
