"""The release script, on checkouts that are ready and on ones that are not."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.release import release as script
from scripts.release.release import ReleaseError, notes, problems, release
from tests.harness.checkout import ROOT
from tests.harness.suite.skipped import needs
from tests.harness.waiting import PATIENCE

pytestmark = [pytest.mark.processes, needs("git")]

CHART = "deploy/helm/draftwire/Chart.yaml"
CHANGELOG = """# Changelog

## [Unreleased]

## [1.2.0] - 2026-01-02

### Added

- Something.

## [1.1.0] - 2025-01-02

- Older.
"""


def git(place: Path, *arguments: str) -> str:
    person = [part for key in ("user.name=x", "user.email=x@y", "commit.gpgsign=false") for part in ("-c", key)]
    done = subprocess.run(
        ["git", *person, *arguments], cwd=place, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    return done.stdout


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A checkout that can be released as 1.2.0, with the files that have a version."""
    place = tmp_path / "checkout"
    fallback = script.re.findall(r'^_UNBUILT = "(.+)"$', (ROOT / "sdk/draftwire/version.py").read_text(), script.re.M)[
        0
    ]
    files = ["pyproject.toml", "sdk/draftwire/version.py", "Dockerfile", "protos/published/draftwire.v1.binpb"]
    manifests = [CHART, "deploy/kubernetes/draftwire.yaml"]
    for name in [*files, *manifests]:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        content = (ROOT / name).read_bytes()
        new = "1.2.0" if name in manifests else "1.2.0.dev0"
        for old in (fallback, fallback.replace(".dev", "-dev")):  # the latter is the chart's own version
            content = content.replace(old.encode(), new.encode())
        (place / name).write_bytes(content)
    (place / "CHANGELOG.md").write_text(CHANGELOG)
    (place / "protos/draftwire").mkdir()
    (place / "protos/draftwire/a.proto").touch()
    git(place, "init", "--quiet", "--initial-branch=main")
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


def later_contract(place: Path) -> None:
    (place / "protos/draftwire/a.proto").write_text("message A {}")
    commit(place)


def no_contract(place: Path) -> None:
    (place / "protos/published/draftwire.v1.binpb").unlink()
    commit(place)


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
        (later_contract, "the contract has changed since it was published"),
        (no_contract, "there is no protos/published"),
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
    with pytest.raises(ReleaseError, match=r"no section of 1\.0\.0"):
        notes("1.0.0", ready)


def test_a_tag_is_made_last_and_not_in_a_dry_run(ready: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The build, which the wheels' tests cover, is left out."""
    done: list[str] = []

    def build(version: str, out: Path, root: Path) -> list[Path]:
        done.append("built")
        assert git(ready, "tag") == ""
        return []

    monkeypatch.setattr(script, "build", build)
    monkeypatch.setattr(script, "try_wheels", lambda built, version: done.append("tried"))
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "x@y")
    release("1.2.0", tmp_path, tests=False, tag=False, root=ready)
    assert done == ["built", "tried"]
    assert git(ready, "tag") == ""
    release("1.2.0", tmp_path, tests=False, tag=True, root=ready)
    assert git(ready, "tag").split() == ["v1.2.0"]
    assert git(ready, "cat-file", "-t", "v1.2.0").strip() == "tag"
    with pytest.raises(ReleaseError, match=r"there is a tag v1\.2\.0"):
        release("1.2.0", tmp_path, tests=False, tag=True, root=ready)


def test_no_tag_if_the_tests_fail(ready: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (ready / ".ci").mkdir()
    (ready / ".ci/run").write_text("#!/bin/sh\nexit 3\n")
    (ready / ".ci/run").chmod(0o755)
    commit(ready)
    monkeypatch.setattr(script, "build", lambda *arguments: pytest.fail("it goes on"))
    with pytest.raises(ReleaseError, match="the tests fail"):
        release("1.2.0", tmp_path, tests=True, tag=True, root=ready)
    assert git(ready, "tag") == ""
