"""Builds the compiled library from `csrc`, for installations, wheels, images, checkouts and tests alike.

Needs only the standard library, so that `services/hatch_build.py` can load this file where nothing else is installed.
In a checkout, `python -m draftwire_core.engine.kernels.build` rebuilds the library after a change of its sources.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

KERNELS = Path(__file__).parent
SOURCES = KERNELS / "csrc"
LIBRARY = KERNELS / "libdraftwire_engine.so"
FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-Wno-psabi", "-fPIC", "-shared")
LINKED = ("-lm", "-pthread")
COMPILE_SECONDS = 600


class BuildError(Exception):
    """Raised if the library cannot be built on this machine; the message says why."""


def source_hash(sources: Path = SOURCES) -> str:
    """SHA-256 (hex) of the flags and of the names and contents of all C files; the library contains it as well.

    Flags are included because they affect the computed bits as much as the sources do.
    """
    found = hashlib.sha256(" ".join(FLAGS + LINKED).encode())
    for file in sorted(file for file in sources.rglob("*") if file.suffix in (".c", ".h")):
        content = file.read_bytes()
        found.update(f"\n{file.relative_to(sources).as_posix()} {len(content)}\n".encode() + content)
    return found.hexdigest()


def build(library: Path = LIBRARY, sources: Path = SOURCES, *options: str) -> None:
    """Compiles `sources` and replaces `library` atomically on success. Raises BuildError.

    options: further arguments for the compiler, which is $CC, or else cc, gcc or clang.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BuildError("no C compiler found (cc, gcc or clang)")
    unfinished = library.with_suffix(".so.new")
    command = [
        *compiler.split(), *FLAGS, f'-DDRAFTWIRE_SOURCE_HASH="{source_hash(sources)}"', *options,
        f"-I{sources}", "-o", str(unfinished), *map(str, sorted(sources.rglob("*.c"))), *LINKED,
    ]  # fmt: skip
    try:
        subprocess.run(command, check=True, timeout=COMPILE_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"the C code does not compile on this machine: {error}") from error
    unfinished.replace(library)  # a process that has loaded the old file keeps it


if __name__ == "__main__":
    try:
        build()
    except BuildError as error:
        sys.exit(str(error))
