"""Makes a release of this checkout: checks that it can be one, builds it, tries what was built, and tags the commit.

    python scripts/release/release.py 0.1.0 [--dry-run] [--skip-tests]
    python scripts/release/release.py 0.1.0 --notes     prints the version's section of CHANGELOG.md

It checks first, and reports all that is wrong at once: nothing uncommitted, the version's section in CHANGELOG.md with
an empty *Unreleased* above it, the version or its fallback everywhere that has one, the published contract, and no tag
of that name. Then it runs the tests, builds the wheels and source distributions of the version, installs the wheels and
generates a text by their services. Last it makes the tag, which is local: pushing it makes the workflows publish. A dry
run does everything but the tag.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.release.try_installation import TrialError, try_installation  # noqa: E402

VARIABLE = "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_DRAFTWIRE"
_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")

_IMAGE = re.compile(r"^ *image: (draftwire-[\w-]+):([\w.+-]+)$", re.MULTILINE)
"""An image in the rendered manifests, as `image: draftwire-verifier:0.1.0-cpu`."""


class ReleaseError(Exception):
    """Raised if there can be no release; the message says why."""


def problems(version: str, root: Path = ROOT) -> list[str]:
    """Returns what keeps a checkout from being released as this version."""
    if not _VERSION.fullmatch(version):
        return [f"{version} is no version of a release, as 0.1.0 or 0.2.0rc1 is"]
    return [*_of_git(version, root), *_of_changelog(version, root), *_of_versions(version, root), *_of_contract(root)]


def _of_git(version: str, root: Path) -> Iterator[str]:
    if changed := _git(root, "status", "--porcelain"):
        yield f"not committed: {', '.join(line[3:] for line in changed.splitlines())}"
    if _git(root, "tag", "--list", f"v{version}"):
        yield f"there is a tag v{version}"


def _of_changelog(version: str, root: Path) -> Iterator[str]:
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    if headings[:1] != ["[Unreleased]"]:
        yield "CHANGELOG.md does not begin with a section [Unreleased]"
    elif re.split(r"^## .+$", text, flags=re.MULTILINE)[1].strip():
        yield "CHANGELOG.md: [Unreleased] is not empty"
    if not any(re.fullmatch(rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", each) for each in headings):
        yield f"CHANGELOG.md has no section ## [{version}] - YEAR-MONTH-DAY"


def _of_versions(version: str, root: Path) -> Iterator[str]:
    """Problems of the places that have a version: the fallback of builds without git, the chart, and its manifests."""
    fallback = re.sub(r"(a|b|rc)\d+$", "", version) + ".dev0"
    places = {
        "pyproject.toml": r'^fallback-version = "(.+)"$',
        "sdk/draftwire/version.py": r'^_UNBUILT = "(.+)"$',
        "Dockerfile": r"^ARG DRAFTWIRE_VERSION=(.+)$",
    }
    for file, pattern in places.items():
        found = re.findall(pattern, (root / file).read_text(encoding="utf-8"), re.MULTILINE)
        if found != [fallback]:
            yield f"{file} has {', '.join(found) or 'no version'}, not {fallback}"
    chart = (root / "deploy/helm/draftwire/Chart.yaml").read_text(encoding="utf-8")
    semantic = re.sub(r"(a|b|rc)(\d+)$", r"-\1\2", version)
    for line in (f"version: {semantic}", f'appVersion: "{version}"'):
        if line not in chart.splitlines():
            yield f"deploy/helm/draftwire/Chart.yaml has no line {line}"
    manifest = root / "deploy/kubernetes/draftwire.yaml"
    for name, tag in _IMAGE.findall(manifest.read_text(encoding="utf-8")):
        if tag.removesuffix("-cpu") != version:
            yield f"{manifest.relative_to(root)} names {name}:{tag}, not {version}"


def _of_contract(root: Path) -> Iterator[str]:
    """Problems of protos/published, which has to be newer than the contract that it is the picture of."""
    published = "protos/published/draftwire.v1.binpb"
    if not (root / published).exists():
        yield f"there is no {published}: make publish-contract"
    elif later := _git(root, "log", "--format=%h", f"{_last_commit(root, published)}..HEAD", "--", "protos/draftwire"):
        yield f"the contract has changed since it was published ({later.split()[0]}): make publish-contract"


def _last_commit(root: Path, file: str) -> str:
    return _git(root, "log", "--max-count=1", "--format=%H", "--", file)


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.rstrip()


def notes(version: str, root: Path = ROOT) -> str:
    """Returns a version's section of the changelog. Raises ReleaseError."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## \[{re.escape(version)}\].*?$(.*?)(?=^## |^\[[^]]+\]: |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ReleaseError(f"CHANGELOG.md has no section of {version}")
    return found[1].strip()


def build(version: str, out: Path, root: Path = ROOT) -> list[Path]:
    """Builds the wheels and source distributions of a version; returns their paths. Raises ReleaseError."""
    command = [sys.executable, str(root / "scripts/release/build_wheels.py"), "--out", str(out)]
    done = subprocess.run(command, env=os.environ | {VARIABLE: version}, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ReleaseError("the wheels could not be built")
    built = [Path(line) for line in done.stdout.split()]
    if other := [file.name for file in built if f"-{version}" not in file.name]:
        raise ReleaseError(f"not of version {version}: {', '.join(other)}")
    return built


def try_wheels(built: list[Path], version: str) -> None:
    """Installs the wheels that fit this machine, starts their services and generates a text through each.

    Their dependencies are those that are installed next to this Python. Raises ReleaseError.
    """
    fitting = [each for each in built if each.name.endswith(("-any.whl", f"_{platform.machine()}.whl"))]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        python = place / "bin/python"
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
        subprocess.run([*pip, *map(str, fitting)], check=True)
        for packages in place.glob("lib/*/site-packages"):
            (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
        command = [str(place / "bin/draftwire"), "--version"]
        told = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True).stdout.strip()
        if told != version:
            raise ReleaseError(f"the installed wheels are of version {told}")
        try:
            try_installation(place / "bin", place / "bin", ROOT / "models")
        except TrialError as error:
            raise ReleaseError(f"the installed wheels do not work: {error}") from error


def main() -> None:
    """Makes the release that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="as 0.1.0")
    parser.add_argument("--dry-run", action="store_true", help="do everything but make the tag")
    parser.add_argument("--skip-tests", action="store_true", help="the tests of this commit have passed elsewhere")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for what is built (default: dist)")
    parser.add_argument("--notes", action="store_true", help="print what the changelog says about the version")
    options = parser.parse_args()
    try:
        if options.notes:
            print(notes(options.version))
            return
        release(options.version, options.out, tests=not options.skip_tests, tag=not options.dry_run)
    except ReleaseError as error:
        sys.exit(f"no release: {error}")


def release(version: str, out: Path, *, tests: bool, tag: bool, root: Path = ROOT) -> None:
    """Makes a release. Raises ReleaseError."""
    if found := problems(version, root):
        raise ReleaseError("".join(f"\n  - {each}" for each in found))
    if tests and subprocess.run([root / ".ci/run"], check=False).returncode:
        raise ReleaseError("the tests fail")
    built = build(version, out, root)
    try_wheels(built, version)
    print("\n".join(map(str, built)))
    if not tag:
        print(f"everything is ready for v{version}; no tag was made")
        return
    _git(root, "tag", "--annotate", f"v{version}", "--message", f"draftwire {version}")
    print(f"tagged v{version}; publish it: git push origin v{version}")


if __name__ == "__main__":
    main()
