"""Makes a release of this checkout: builds everything that is published, tries it, and tags the commit.

    make release VERSION=0.1.0 [WITHOUT="images sbom"]
    python scripts/release/release.py 0.1.0 --notes     prints the version's section of CHANGELOG.md

Each stage prints a line. They work on a copy of the last commit, in which the release's own commit is made
(scripts/release/readiness.py); a checkout with uncommitted changes is refused. What is published is in dist/0.1.0. The
tag is made last and is local: pushing it makes the workflows build the same again, and publish it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.release import readiness  # noqa: E402
from scripts.release.newcomer import try_release  # noqa: E402
from scripts.release.readiness import CHART, ReleaseError  # noqa: E402
from scripts.release.try_installation import TrialError  # noqa: E402

VARIABLE = "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_DRAFTWIRE"
IMAGES = {"verifier": "-cpu", "drafter": "-cpu", "gateway": "", "models": ""}
"""The images that are built here, with what follows the version in their tags. Those for GPUs are the workflow's."""


@dataclass(frozen=True)
class Release:
    """A release that is being made."""

    version: str
    """The version, as 0.1.0."""
    checkout: Path
    """The checkout that it is made of."""
    source: Path
    """A copy of the checkout's last commit, in which the release's commit is made."""
    out: Path
    """The folder of what is published."""

    def run(self, *command: str | Path, **variables: str) -> str:
        """Runs a program in the copy; returns what it prints. Raises ReleaseError."""
        settings = os.environ | {VARIABLE: self.version} | variables
        done = subprocess.run(command, cwd=self.source, env=settings, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ReleaseError(f"{shlex.join(map(str, command))}\n{done.stdout}{done.stderr}".rstrip())
        return done.stdout

    def tool(self, name: str) -> Path:
        """Returns a program of the environment that `make release` sets up."""
        return Path(sys.prefix) / "tools/bin" / name


def version(release: Release) -> str:
    """Makes the release's commit."""
    readiness.prepare(release.version, release.source, release.checkout / "node_modules/.bin/buf")
    if found := readiness.problems(release.version, release.source):
        raise ReleaseError("".join(f"\n  - {each}" for each in found))
    return readiness.git(release.source, "rev-parse", "--short", "HEAD")


def build(release: Release) -> str:
    """Builds wheels and source distributions, and checks that the package index would take them."""
    script = release.source / "scripts/release/build_wheels.py"
    built = [Path(line) for line in release.run(sys.executable, script, "--out", release.out).split()]
    if other := [file.name for file in built if f"-{release.version}" not in file.name]:
        raise ReleaseError(f"not of version {release.version}: {', '.join(other)}")
    release.run(release.tool("twine"), "check", "--strict", *built)
    return f"{len(built)} wheels and source distributions"


def images(release: Release) -> str:
    """Builds the images, runs them together, and writes them as archives.

    The variable BUILDAH_OPTIONS has options of the builds, BASE_IMAGE the image of Python they begin with.
    """
    revision = readiness.git(release.source, "rev-parse", "HEAD")
    options = shlex.split(os.environ.get("BUILDAH_OPTIONS", ""))
    release.run(
        sys.executable, "deploy/image/build_check.py", *options,
        DRAFTWIRE_VERSION=release.version, DRAFTWIRE_REVISION=revision,
    )  # fmt: skip
    for target, suffix in IMAGES.items():
        tag = f"{release.version}{suffix}"
        archive = release.out / f"draftwire-{target}-{tag}.tar"
        archive.unlink(missing_ok=True)  # buildah would add to it
        to = f"oci-archive:{archive}:draftwire-{target}:{tag}"
        release.run("buildah", "push", "--quiet", f"localhost/draftwire-{target}:check", to)
    return f"{len(IMAGES)} images, built, run and written"


def chart(release: Release) -> str:
    """Packs the chart, as `helm package` does."""
    folder = (release.source / CHART).parent
    ignored = {".helmignore", *(line.rstrip("/") for line in (folder / ".helmignore").read_text().split())}
    archive = release.out / f"draftwire-chart-{release.version}.tgz"
    with tarfile.open(archive, "w:gz") as packed:
        for each in sorted(folder.iterdir()):
            if each.name not in ignored:
                packed.add(each, f"draftwire/{each.name}")
    return archive.name


def sbom(release: Release) -> str:
    """Writes the list of what an installation is made of."""
    script = ("-m", "scripts.release.sbom", release.tool("cyclonedx-py"))
    made = release.run(sys.executable, *script, "--version", release.version, "--out", release.out)
    return Path(made.strip()).name


def notes(release: Release) -> str:
    """Writes the version's section of the changelog."""
    text = readiness.notes(release.version, release.source)
    (release.out / "notes.md").write_text(f"{text}\n", encoding="utf-8")
    return "notes.md"


def checksums(release: Release) -> str:
    """Writes the hashes of all that is published."""
    files = sorted(file for file in release.out.iterdir() if file.name != "SHA256SUMS")
    lines = []
    for file in files:
        with file.open("rb") as opened:
            lines.append(f"{hashlib.file_digest(opened, 'sha256').hexdigest()}  {file.name}\n")
    (release.out / "SHA256SUMS").write_text("".join(lines), encoding="ascii")
    return f"{len(files)} files"


def trial(release: Release) -> str:
    """Installs wheels and source distributions, each into an environment of its own, and tries them."""
    try:
        commands = try_release(release.out, release.version, release.source / "models")
    except TrialError as error:
        raise ReleaseError(str(error)) from error
    return f"wheels and source distributions answer after {commands} commands"


STAGES: Mapping[Callable[[Release], str], tuple[str, ...]] = {
    version: (),
    build: (),
    images: ("buildah", "runc", *(() if "BASE_IMAGE" in os.environ else ("debootstrap",))),
    chart: (),
    sbom: (),
    notes: (),
    checksums: (),
    trial: (),
}
"""The stages in their order, with the programs that each needs of this machine. A stage returns what it has made."""


def missing(without: set[str]) -> list[str]:
    """Returns what keeps stages from running here, a sentence each. without: stages that are left out"""
    return [
        f"{stage.__name__}: {program} is not installed (apt-get install {program}, or leave the stage out by "
        f'WITHOUT="{stage.__name__}")'
        for stage, programs in STAGES.items()
        for program in programs
        if stage.__name__ not in without and shutil.which(program) is None
    ]


def make(number: str, out: Path, without: set[str], root: Path = ROOT) -> None:
    """Makes a release. Raises ReleaseError.

    Args:
        number: its version.
        out: the folder of what is published, which is emptied.
        without: names of stages that are left out.
        root: the checkout.
    """
    if found := [*readiness.unfit(number, root), *missing(without)]:
        raise ReleaseError("".join(f"\n  - {each}" for each in found))
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place:
        release = Release(number, root, Path(place) / "source", out)
        readiness.git(root, "worktree", "add", "--quiet", "--detach", str(release.source), "HEAD")
        try:
            for stage in STAGES:
                if stage.__name__ in without:
                    print(f"{stage.__name__:10} left out", flush=True)
                    continue
                print(f"{stage.__name__:10}", end=" ", flush=True)
                begun = time.monotonic()
                made = stage(release)
                print(f"{made} ({time.monotonic() - begun:.0f} s)", flush=True)
            commit = readiness.git(release.source, "rev-parse", "HEAD")
        finally:
            readiness.git(root, "worktree", "remove", "--force", str(release.source))
    readiness.git(root, "tag", "--annotate", f"v{number}", commit, "--message", f"draftwire {number}")
    print(f"tagged v{number}; what is left is the upload: git push origin v{number} v{number}~0:main")


def main() -> None:
    """Makes the release that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="as 0.1.0")
    parser.add_argument(
        "--without", action="append", default=[], choices=[stage.__name__ for stage in STAGES if stage is not version],
        help="leave out a stage; may be repeated",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="folder for what is published (default: dist/VERSION)")
    parser.add_argument("--notes", action="store_true", help="print what the changelog says about the version")
    options = parser.parse_args()
    try:
        if options.notes:
            print(readiness.notes(options.version, ROOT))
            return
        make(options.version, (options.out or ROOT / "dist" / options.version).absolute(), set(options.without))
    except ReleaseError as error:
        sys.exit(f"no release: {error}")


if __name__ == "__main__":
    main()
