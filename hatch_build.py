"""Builds the compiled part of the engine when the package is installed or a wheel is made.

Without a C compiler the package works as well, slower on CPUs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi", "-fPIC", "-shared")
LIBRARIES = ("-lm", "-pthread")
KERNELS = "speculative_engine/kernels"
LIBRARY = "libspeculative_engine.so"
COMPILE_SECONDS = 600


class CompiledEngine(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the C files of the engine's kernels into one library, which `compiled_library` loads."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and have the wheel take the library along."""
        place = Path(self.root) / KERNELS
        library = place / LIBRARY
        compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            print("no C compiler: the engine will be slower on CPUs", file=sys.stderr)
            return
        unfinished = library.with_suffix(".so.new")
        sources = map(str, sorted((place / "csrc").glob("*.c")))
        command = [*compiler.split(), *FLAGS, "-o", str(unfinished), *sources, *LIBRARIES]
        try:
            subprocess.run(command, check=True, timeout=COMPILE_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"the engine will be slower on CPUs, as its C code does not compile here: {error}", file=sys.stderr)
            return
        unfinished.replace(library)  # a process that has the old one open keeps it
        build_data["artifacts"].append(f"{KERNELS}/{LIBRARY}")
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
