"""Builds what a release publishes: the SDK's wheel, one of the services a platform, and both source distributions.

    python scripts/release/build_wheels.py [--platform x86_64] [--platform aarch64] [--out dist]

The wheels of the services have the compiled part of the engine, and run on any Linux since 2014. The SDK's runs
anywhere.

Any machine builds for all platforms, by zig's C compiler, a package of PyPI, which takes the platform and the oldest C
library (glibc) to support. The compiled part selects the processor's instructions at run time. A
wheel is refused if it has no compiled part, if that needs a newer C library than its name says, or if it would install
a top-level name that is not its distribution's.
"""

import argparse
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

ROOT = Path(__file__).resolve().parents[2]
SDK, SERVICES = ROOT / "sdk", ROOT / "services"
"""The folders of the distributions' project files."""
NAMES = {
    "draftwire": {"draftwire", "draftwire_tools"},
    "draftwire_services": {
        "drafter_service",
        "draftwire_core",
        "draftwire_sglang",
        "draftwire_vllm",
        "gateway_service",
        "verifier_service",
    },
}
"""The packages that each distribution installs."""
LIBRARY = "draftwire_core/engine/kernels/libdraftwire_engine.so"
PLATFORMS = ("x86_64", "aarch64")
GLIBC = (2, 17)
"""The oldest C library that the wheels run with: that of CentOS 7, tag manylinux_2_17, also known as manylinux2014."""
BUILD_SECONDS = 900


class WheelError(Exception):
    """Raised if a wheel cannot be built or is not what its name says; the message says why."""


def compiler(platform: str) -> str:
    """Returns the command of the C compiler for a platform, as `$CC`."""
    return f"{sys.executable} -m ziglang cc -target {platform}-linux-gnu.{'.'.join(map(str, GLIBC))}"


def build_services(platform: str, out: Path) -> Path:
    """Builds the services' wheel of one platform into the folder `out`, checks it, and returns its path.

    Raises WheelError.
    """
    tag = f"manylinux_{'_'.join(map(str, GLIBC))}_{platform}"
    wheel = build(SERVICES, "wheel", out, {"CC": compiler(platform), "DRAFTWIRE_WHEEL_PLATFORM": tag})
    if not wheel.name.endswith(f"-py3-none-{tag}.whl"):
        raise WheelError(f"{platform}: the wheel is named {wheel.name}")
    check_library(wheel, platform)
    return wheel


def build_sdk(out: Path) -> Path:
    """Builds the SDK's wheel into the folder `out`, checks it, and returns its path. Raises WheelError."""
    wheel = build(SDK, "wheel", out)
    if not wheel.name.endswith("-py3-none-any.whl"):
        raise WheelError(f"the wheel is named {wheel.name}")
    return wheel


def build(project: Path, kind: str, out: Path, settings: Mapping[str, str] | None = None) -> Path:
    """Builds the wheel or the sdist of a project's folder; returns its path. Raises WheelError."""
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(out), str(project)]
    built = subprocess.run(
        command, env=os.environ | (settings or {}), capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    if built.returncode:
        raise WheelError(f"{project.name}: {built.stdout}{built.stderr}")
    result = out / built.stdout.strip().rpartition(" ")[2]
    if kind == "wheel":
        check_names(result)
    return result


def check_names(wheel: Path) -> None:
    """Raises WheelError if a wheel would install a top-level name that is not its distribution's."""
    with zipfile.ZipFile(wheel) as archive:
        names = {each.partition("/")[0] for each in archive.namelist()}
    if others := {name for name in names if not name.endswith(".dist-info")} - NAMES[wheel.name.partition("-")[0]]:
        raise WheelError(f"{wheel.name} would install {', '.join(sorted(others))}")


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
    """Builds the wheels and source distributions, and prints their paths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--platform", action="append", choices=PLATFORMS, help="by default all")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for what is built (default: dist)")
    options = parser.parse_args()
    try:
        print(build_sdk(options.out), flush=True)
        for platform in options.platform or PLATFORMS:
            print(build_services(platform, options.out), flush=True)
        for project in (SDK, SERVICES):
            print(build(project, "sdist", options.out), flush=True)
    except WheelError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
