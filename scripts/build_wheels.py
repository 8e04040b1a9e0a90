"""Builds the release's wheels: one a platform, with the compiled part of the engine, for any Linux since 2014.

    python scripts/build_wheels.py [--platform x86_64] [--platform aarch64] [--out dist]

Any machine builds for all platforms, by zig's C compiler, a package of PyPI, which takes the platform and the oldest C
library (glibc) to support. The compiled part selects the processor's instructions at run time. A
wheel is refused if it has no compiled part, or if that needs a newer C library than its name says.
"""

import argparse
import os
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = "speculative_engine/kernels/libspeculative_engine.so"
PLATFORMS = ("x86_64", "aarch64")
GLIBC = (2, 17)
"""The oldest C library that the wheels run with: that of CentOS 7, tag manylinux_2_17, also known as manylinux2014."""
BUILD_SECONDS = 900


class WheelError(Exception):
    """Raised if a wheel cannot be built or is not what its name says; the message says why."""


def compiler(platform: str) -> str:
    """Returns the command of the C compiler for a platform, as `$CC`."""
    return f"{sys.executable} -m ziglang cc -target {platform}-linux-gnu.{'.'.join(map(str, GLIBC))}"


def build_wheel(platform: str, out: Path) -> Path:
    """Builds the wheel of one platform into the folder `out`, checks it, and returns its path. Raises WheelError."""
    tag = f"manylinux_{'_'.join(map(str, GLIBC))}_{platform}"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    settings = os.environ | {"CC": compiler(platform), "DRAFTWIRE_WHEEL_PLATFORM": tag}
    built = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    if built.returncode:
        raise WheelError(f"{platform}: {built.stdout}{built.stderr}")
    wheel = out / built.stdout.strip().rpartition(" ")[2]
    if not wheel.name.endswith(f"-py3-none-{tag}.whl"):
        raise WheelError(f"{platform}: the wheel is named {wheel.name}")
    check_library(wheel, platform)
    return wheel


def check_library(wheel: Path, platform: str) -> None:
    """Raises WheelError unless the wheel has a library for the platform that needs no C library newer than GLIBC."""
    with zipfile.ZipFile(wheel) as archive:
        try:
            library = ELFFile(BytesIO(archive.read(LIBRARY)))
        except KeyError:
            raise WheelError(f"{wheel.name} has no {LIBRARY}") from None
    machine = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}.get(library["e_machine"])
    if machine != platform:
        raise WheelError(f"{wheel.name} has a library for {library['e_machine']}")
    newest = max(needed_glibc(library), default=GLIBC)
    if newest > GLIBC:
        raise WheelError(f"{wheel.name} needs glibc {'.'.join(map(str, newest))}")


def needed_glibc(library: ELFFile) -> set[tuple[int, ...]]:
    """Returns the versions of the C library whose symbols a library needs."""
    sections = [each for each in library.iter_sections() if isinstance(each, GNUVerNeedSection)]
    names = [symbol.name for section in sections for _, symbols in section.iter_versions() for symbol in symbols]
    return {tuple(map(int, name.removeprefix("GLIBC_").split("."))) for name in names if name.startswith("GLIBC_")}


def main() -> None:
    """Builds the wheels that the command line names, and prints their paths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--platform", action="append", choices=PLATFORMS, help="by default all")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the wheels (default: dist)")
    options = parser.parse_args()
    for platform in options.platform or PLATFORMS:
        try:
            print(build_wheel(platform, options.out), flush=True)
        except WheelError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
