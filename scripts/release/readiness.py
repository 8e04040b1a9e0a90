"""The commit of a release: what keeps a checkout from being released, the edits that make the commit, and its notes.

A commit that can be released as 0.1.0 has that section in CHANGELOG.md with an empty *Unreleased* above it, the version
in the chart and its manifests, its fallback everywhere that has one, and the contract published as it is. `prepare`
makes such a commit of one that has its changes under *Unreleased*.
"""

from __future__ import annotations

import datetime
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
CHART, MANIFEST = "deploy/helm/draftwire/Chart.yaml", "deploy/kubernetes/draftwire.yaml"
PUBLISHED = "protos/published/draftwire.v1.binpb"
_IMAGE = re.compile(r"^ *image: (draftwire-[\w-]+):([\w.+-]+)$", re.MULTILINE)
"""An image in the rendered manifests, as `image: draftwire-verifier:0.1.0-cpu`."""


class ReleaseError(Exception):
    """Raised if there can be no release; the message says why."""


def problems(version: str, root: Path) -> list[str]:
    """Returns what keeps a checkout's last commit from being released as this version."""
    return unfit(version, root) or [*_of_changelog(version, root), *_of_versions(version, root)]


def unfit(version: str, root: Path) -> list[str]:
    """Returns what keeps it from being released as this version, whatever the release's commit changes."""
    if not _VERSION.fullmatch(version):
        return [f"{version!r} is no version of a release, as 0.1.0 or 0.2.0rc1 is"]
    return [*_of_git(version, root)]


def _of_git(version: str, root: Path) -> Iterator[str]:
    if changed := git(root, "status", "--porcelain"):
        yield f"not committed: {', '.join(line[3:] for line in changed.splitlines())}"
    if git(root, "tag", "--list", f"v{version}"):
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
    fallback = _fallback(version)
    places = {
        "pyproject.toml": r'^fallback-version = "(.+)"$',
        "sdk/draftwire/version.py": r'^_UNBUILT = "(.+)"$',
        "Dockerfile": r"^ARG DRAFTWIRE_VERSION=(.+)$",
    }
    for file, pattern in places.items():
        found = re.findall(pattern, (root / file).read_text(encoding="utf-8"), re.MULTILINE)
        if found != [fallback]:
            yield f"{file} has {', '.join(found) or 'no version'}, not {fallback}"
    chart = (root / CHART).read_text(encoding="utf-8")
    for line in (f"version: {_semantic(version)}", f'appVersion: "{version}"'):
        if line not in chart.splitlines():
            yield f"{CHART} has no line {line}"
    manifest = root / MANIFEST
    for name, tag in _IMAGE.findall(manifest.read_text(encoding="utf-8")):
        if tag.removesuffix("-cpu") != version:
            yield f"{manifest.relative_to(root)} names {name}:{tag}, not {version}"


def _fallback(version: str) -> str:
    """The version of a build without git, as 0.1.0.dev0 for 0.1.0rc1."""
    return re.sub(r"(a|b|rc)\d+$", "", version) + ".dev0"


def _semantic(version: str) -> str:
    """A version as charts have it, as 0.1.0-rc1."""
    return re.sub(r"\.?(a|b|rc|dev)(\d+)$", r"-\1\2", version)


def git(root: Path, *arguments: str) -> str:
    """Returns what git prints in a checkout. Raises ReleaseError."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.rstrip()


def prepare(version: str, root: Path, buf: Path) -> None:
    """Commits what a release needs in a checkout that lacks it.

    Args:
        version: the release's.
        root: the checkout, with nothing uncommitted.
        buf: the program that publishes the contract.

    Raises:
        ReleaseError: the contract cannot be published, or git refuses.
    """
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    if f"\n## [{version}] - " not in text:
        today = datetime.datetime.now(datetime.UTC).date()
        text = text.replace("## [Unreleased]\n", f"## [Unreleased]\n\n## [{version}] - {today}\n", 1)
        changelog.write_text(text, encoding="utf-8")
    fallback = _fallback(version)
    for name in (CHART, MANIFEST):
        file = root / name
        text = file.read_text(encoding="utf-8").replace(fallback, version)
        file.write_text(text.replace(_semantic(fallback), _semantic(version)), encoding="utf-8")
    if not _is_published(root):
        if not buf.exists():
            raise ReleaseError(f"there is no {buf}, which publishes the contract: npm installs it (make contract)")
        command = [str(buf), "build", "protos", "--exclude-source-info", "--output", PUBLISHED]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ReleaseError(f"the contract cannot be published: {done.stderr.strip()}")
    if git(root, "status", "--porcelain"):
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--message", f"Release {version}")


def _is_published(root: Path) -> bool:
    """Whether the published contract is newer than the contract that it is the picture of."""
    last = git(root, "log", "--max-count=1", "--format=%H", "--", PUBLISHED)
    return not git(root, "log", "--format=%h", f"{last}..HEAD", "--", "protos/draftwire")


def notes(version: str, root: Path) -> str:
    """Returns a version's section of the changelog. Raises ReleaseError."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(rf"^## \[{re.escape(version)}\].*?$(.*?)(?=^## |^\[[^]]+\]: |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise ReleaseError(f"CHANGELOG.md says nothing about {version}")
    return found[1].strip()
