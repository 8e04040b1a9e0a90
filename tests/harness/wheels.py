"""Builds the release's wheels and installs them for tests."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from draftwire.version import __version__
from tests.harness.checkout import ROOT
from tests.harness.waiting import LONG_PATIENCE

SDK_NEEDS = (
    "annotated_doc", "annotated_types", "click", "google", "grpc", "grpc_status", "markdown_it", "mdurl", "pydantic",
    "pydantic_core", "pygments", "rich", "shellingham", "typer", "typing_extensions.py", "typing_inspection",
)  # fmt: skip
"""What the SDK and its dependencies need, as named in site-packages."""
PYTHONS_OWN = ("_distutils_hack", "distutils-precedence.pth", "pip", "pkg_resources", "setuptools")
"""What a new environment has in site-packages, beside descriptions of distributions."""


@dataclass(frozen=True)
class Built:
    """What a release publishes."""

    sdk: Path
    services: Mapping[str, Path]
    """By platform."""
    sdists: tuple[Path, Path]
    """Of the SDK and of the services."""


def build_wheels(out: Path, platforms: Iterable[str] = ("x86_64", "aarch64")) -> Built:
    """Runs scripts/release/build_wheels.py.

    The version is the installed one, so that the build leaves the checkout's as it is for tests beside it.
    """
    flags = [part for platform in platforms for part in ("--platform", platform)]
    command = [sys.executable, str(ROOT / "scripts" / "release" / "build_wheels.py"), "--out", str(out), *flags]
    settings = os.environ | {"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_DRAFTWIRE": __version__}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=LONG_PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sdk, *services, sdk_source, services_source = map(Path, done.stdout.split())
    return Built(sdk, dict(zip(platforms, services, strict=True)), (sdk_source, services_source))


class Installation:
    """An environment with wheels of the release."""

    def __init__(self, place: Path, *wheels: Path):
        subprocess.run([sys.executable, "-m", "venv", place], check=True, timeout=LONG_PATIENCE)
        self.programs = place / "bin"
        self.place = place
        command = [self.programs / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", *wheels]
        subprocess.run(command, check=True, timeout=LONG_PATIENCE)
        (self._packages,) = place.glob("lib/*/site-packages")

    def names(self) -> set[str]:
        """The names in site-packages that Python's own tools have not put there."""
        every = {each.name for each in self._packages.iterdir()}
        return {name for name in every if not name.endswith(".dist-info")} - set(PYTHONS_OWN)

    def add_dependencies(self, *names: str) -> None:
        """Makes third-party packages of this interpreter importable: those of the names, by default all.

        What is installed editable, as the checkout, is not among them.
        """
        installed = Path(sysconfig.get_path("purelib"))
        for name in names:
            if not (self._packages / name).exists():
                (self._packages / name).symlink_to(installed / name)
        if not names:
            (self._packages / "dependencies.pth").write_text(str(installed))

    def environment(self) -> dict[str, str]:
        """The variables of its programs: nothing leads to a compiler or to the checkout."""
        return {"PATH": "", "HOME": str(self.place), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def run(self, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Runs one of its programs to its end."""
        return subprocess.run(
            [self.programs / program, *arguments], cwd=self.place, env=self.environment(), capture_output=True,
            text=True, timeout=LONG_PATIENCE, check=False,
        )  # fmt: skip
