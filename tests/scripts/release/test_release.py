"""The release script, on checkouts that are ready, on ones that a commit makes so, and on others."""

import hashlib
import re
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.release import release as script
from scripts.release.readiness import CHART, MANIFEST, PUBLISHED, ReleaseError, notes, prepare, problems
from tests.harness.checkout import ROOT
from tests.harness.suite.skipped import needs
from tests.harness.waiting import PATIENCE

pytestmark = [pytest.mark.processes, needs("git")]

NO_BUF = Path("no/buf")
UNRELEASED = "## [Unreleased]\n\n- Something.\n"
LONG = {"build", "images", "sbom", "trial"}
"""Stages that tests of their own cover, or that take minutes."""
CHANGELOG = """# Changelog

## [Unreleased]

## [1.2.0] - 2026-01-02

### Added

- Something.

## [1.1.0] - 2025-01-02

- Older.
"""


def git(place: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=place, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return done.stdout


def of_version(name: str, version: str, of_chart: str) -> bytes:
    """Returns a file of this checkout with another version, and another one in the form of charts."""
    (fallback,) = re.findall(r'^_UNBUILT = "(.+)"$', (ROOT / "sdk/draftwire/version.py").read_text(), re.MULTILINE)
    content = (ROOT / name).read_bytes().replace(fallback.encode(), version.encode())
    return content.replace(fallback.replace(".dev", "-dev").encode(), of_chart.encode())


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A checkout that can be released as 1.2.0, with the files that have a version."""
    place = tmp_path / "checkout"
    ignored = "deploy/helm/draftwire/.helmignore"
    for name in ("pyproject.toml", "sdk/draftwire/version.py", "Dockerfile", PUBLISHED, ignored, CHART, MANIFEST):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        version = "1.2.0" if name in (CHART, MANIFEST) else "1.2.0.dev0"
        (place / name).write_bytes(of_version(name, version, version))
    (place / "CHANGELOG.md").write_text(CHANGELOG)
    (place / "protos/draftwire").mkdir()
    (place / "protos/draftwire/a.proto").touch()
    git(place, "init", "--quiet", "--initial-branch=main")
    for key, value in (("user.name", "x"), ("user.email", "x@y"), ("commit.gpgsign", "false")):
        git(place, "config", key, value)
    commit(place)
    return place


def commit(place: Path) -> None:
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "--message=x")


def test_a_checkout_that_is_ready(ready: Path) -> None:
    assert problems("1.2.0", ready) == []


def replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(place: Path) -> None:
        text = (place / name).read_text()
        assert old in text
        (place / name).write_text(text.replace(old, new))
        commit(place)

    return change


def uncommitted(place: Path) -> None:
    (place / "CHANGELOG.md").write_text(CHANGELOG + "\n")
    (place / "new").touch()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (uncommitted, "not committed: CHANGELOG.md, new"),
        (lambda place: git(place, "tag", "v1.2.0"), "there is a tag v1.2.0"),
        (replace("CHANGELOG.md", "## [Unreleased]\n", ""), "does not begin with a section [Unreleased]"),
        (replace("CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n- New.\n"), "[Unreleased] is not empty"),
        (replace("CHANGELOG.md", "[1.2.0] - 2026-01-02", "[1.2.0]"), "no section ## [1.2.0] - YEAR-MONTH-DAY"),
        (replace("pyproject.toml", "1.2.0.dev0", "1.1.0.dev0"), "pyproject.toml has 1.1.0.dev0, not 1.2.0.dev0"),
        (replace("Dockerfile", "VERSION=1.2.0.dev0", "VERSION=1"), "Dockerfile has 1, not 1.2.0.dev0"),
        (
            replace("deploy/kubernetes/draftwire.yaml", "1.2.0-cpu", "1.2-cpu"),
            "kubernetes/draftwire.yaml names draft",
        ),
        (replace(CHART, "version: 1.2.0", "version: 1.1.0"), "Chart.yaml has no line version"),
        (replace(CHART, '"1.2.0"', '"1.1.0"'), "Chart.yaml has no line appVersion"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_keeps_it_from_being_released(change: Callable[[Path], object], problem: str, ready: Path) -> None:
    change(ready)
    found = problems("1.2.0", ready)
    assert found
    assert all(problem in each for each in found)


@pytest.mark.parametrize("version", ["1.2", "v1.2.0", "1.2.0.dev3", "1.2.0+local", ""])
def test_only_a_release_has_a_version_of_one(version: str, ready: Path) -> None:
    assert len(problems(version, ready)) == 1
    assert "is no version of a release" in problems(version, ready)[0]


def test_the_notes_are_the_versions_section(ready: Path) -> None:
    assert notes("1.2.0", ready) == "### Added\n\n- Something."
    assert notes("1.1.0", ready) == "- Older."
    with pytest.raises(ReleaseError, match=r"says nothing about 1\.0\.0"):
        notes("1.0.0", ready)


def test_a_commit_makes_it_ready(ready: Path) -> None:
    (ready / "CHANGELOG.md").write_text(f"# Changelog\n\n{UNRELEASED}")
    for name in (CHART, MANIFEST):
        (ready / name).write_bytes(of_version(name, "1.2.0.dev0", "1.2.0-dev0"))
    commit(ready)
    assert len(problems("1.2.0", ready)) > 3
    prepare("1.2.0", ready, NO_BUF)
    assert problems("1.2.0", ready) == []
    assert notes("1.2.0", ready) == "- Something."
    assert git(ready, "log", "--format=%s").splitlines()[0] == "Release 1.2.0"
    prepare("1.2.0", ready, NO_BUF)
    assert len(git(ready, "log", "--format=%s").splitlines()) == 3


def test_a_candidate_has_the_charts_form_of_its_version(ready: Path) -> None:
    (ready / "CHANGELOG.md").write_text(f"# Changelog\n\n{UNRELEASED}")
    (ready / CHART).write_text('version: 1.2.0-dev0\nappVersion: "1.2.0.dev0"\n')
    (ready / MANIFEST).write_text("  image: draftwire-verifier:1.2.0.dev0-cpu\n")
    commit(ready)
    prepare("1.2.0rc1", ready, NO_BUF)
    assert problems("1.2.0rc1", ready) == []
    assert (ready / CHART).read_text() == 'version: 1.2.0-rc1\nappVersion: "1.2.0rc1"\n'


def test_the_contract_is_published_if_it_has_changed(ready: Path, tmp_path: Path) -> None:
    (ready / "protos/draftwire/a.proto").write_text("message A {}")
    commit(ready)
    with pytest.raises(ReleaseError, match="no/buf, which publishes the contract: npm"):
        prepare("1.2.0", ready, NO_BUF)
    buf = tmp_path / "buf"
    buf.write_text(f'#!/bin/sh\necho "$@" > {PUBLISHED}\n')
    buf.chmod(0o755)
    prepare("1.2.0", ready, buf)
    assert git(ready, "show", "--format=", "--name-only").split() == [PUBLISHED]
    assert "build protos" in (ready / PUBLISHED).read_text()


def test_what_is_published_and_a_tag(ready: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    script.make("1.2.0", out, LONG, ready)
    assert {file.name for file in out.iterdir()} == {"draftwire-chart-1.2.0.tgz", "notes.md", "SHA256SUMS"}
    lines = [line.split() for line in (out / "SHA256SUMS").read_text().splitlines()]
    assert {name: digest for digest, name in lines} == {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in out.iterdir() if file.name != "SHA256SUMS"
    }
    with tarfile.open(out / "draftwire-chart-1.2.0.tgz") as chart:
        assert chart.getnames() == ["draftwire/Chart.yaml"]
    assert git(ready, "tag").split() == ["v1.2.0"]
    assert git(ready, "cat-file", "-t", "v1.2.0").strip() == "tag"
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told[:-1]] == [stage.__name__ for stage in script.STAGES]
    assert told[-1].endswith("what is left is the upload: git push origin v1.2.0 v1.2.0~0:main")
    with pytest.raises(ReleaseError, match=r"there is a tag v1\.2\.0"):
        script.make("1.2.0", out, LONG, ready)


def test_no_tag_if_a_stage_fails(ready: Path, tmp_path: Path) -> None:
    """There is nothing to build in this checkout."""
    with pytest.raises(ReleaseError, match=r"build_wheels\.py"):
        script.make("1.2.0", tmp_path / "out", LONG - {"build"}, ready)
    assert git(ready, "tag") == ""
    assert len(git(ready, "worktree", "list").splitlines()) == 1


def test_changes_that_are_not_committed_are_refused(ready: Path, tmp_path: Path) -> None:
    uncommitted(ready)
    with pytest.raises(ReleaseError, match="not committed"):
        script.make("1.2.0", tmp_path / "out", LONG, ready)
    assert not (tmp_path / "out").exists()


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = script.missing(set())
    assert any(each.startswith("images: buildah is not installed (apt-get install buildah, or ") for each in found)
    assert script.missing({"images"}) == []
