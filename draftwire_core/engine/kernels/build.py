"""Builds the compiled library from `csrc`, for installations, wheels, images, checkouts and tests alike.

Needs only the standard library, so that `services/hatch_build.py` can load this file where nothing else is installed.
In a checkout, `python -m draftwire_core.engine.kernels.build` rebuilds the library after a change of its sources.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
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


def is_built() -> bool:
    """Whether the library is there, and was built from these sources."""
    return LIBRARY.exists() and source_hash().encode() in LIBRARY.read_bytes()


def build(library: Path = LIBRARY, sources: Path = SOURCES, say: Callable[[str], None] = lambda line: None) -> None:
    """Compiles `sources`, a file on each core at a time, and replaces `library` atomically on success.

    The compiler is $CC, or else cc, gcc or clang.

    Args:
        library: the file to make.
        sources: the folder of the C files.
        say: gets a line for each file that is compiled.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BuildError("no C compiler found (cc, gcc or clang)")
    command = [*compiler.split(), *FLAGS]
    compiling = [*(part for part in command if part != "-shared"), f"-I{sources}", "-c"]
    compiling.append(f'-DDRAFTWIRE_SOURCE_HASH="{source_hash(sources)}"')
    unfinished = library.with_suffix(".so.new")
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(os.cpu_count()) as cores:
        files = {file: f"{place}/{number}.o" for number, file in enumerate(sorted(sources.rglob("*.c")))}
        jobs = {cores.submit(_run, [*compiling, str(file), "-o", made]): file for file, made in files.items()}
        try:
            for number, job in enumerate(as_completed(jobs), 1):
                job.result()
                say(f"compiled {jobs[job].relative_to(sources)} ({number} of {len(jobs)})")
        finally:
            cores.shutdown(cancel_futures=True)
        _run([*command, "-o", str(unfinished), *files.values(), *LINKED])
    unfinished.replace(library)  # a process that has loaded the old file keeps it


def _run(command: list[str]) -> None:
    name = next((Path(part).name for part in command if part.endswith(".c")), LIBRARY.name)
    try:
        subprocess.run(command, check=True, timeout=COMPILE_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{name} is not compiled after {COMPILE_SECONDS} s: this machine is busy or slow") from error
    except subprocess.CalledProcessError as error:  # the compiler has said why
        raise BuildError(
            f"{name} does not compile on this machine: {command[0]} ended with {error.returncode}"
        ) from error
    except OSError as error:
        raise BuildError(f"{name} does not compile on this machine: {error}") from error


if __name__ == "__main__":
    try:
        if is_built():
            print(f"{LIBRARY.name} is of these sources")
        else:
            build(say=functools.partial(print, flush=True))
    except BuildError as error:
        sys.exit(str(error))
