"""The version: from git in source distribution, wheel and checkout, with one fallback where it is unknown."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from draftwire import version
from tests.harness.suite.skipped import needs
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
UNBUILT = PROJECT["tool"]["hatch"]["version"]["fallback-version"]
NAME = "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_DRAFTWIRE"

needs_git = needs("git")


def run(*command: str | Path, place: Path, **variables: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SETUPTOOLS_", "PYTHON"))}
    person = {f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        command, cwd=place, env=own | person | variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def hatch_version(place: Path, **variables: str) -> str:
    return run(sys.executable, "-m", "hatchling", "version", place=place, **variables)


SHARED = ("Makefile", ".gitignore", "README.md", "LICENSE", "pyproject.toml", "sdk/draftwire/version.py")
"""What the version of a checkout depends on."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with two commits and no tag."""
    return committed(tmp_path_factory.mktemp("checkout"), SHARED)


def committed(place: Path, items: Iterable[str]) -> Path:
    """Copies files and folders into a new repository, and commits them, and once more."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "version.txt*")
    for item in items:
        source, target = ROOT / item, place / item
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=ignored)
        else:
            shutil.copy(source, target)
    run("git", "init", "--quiet", "--initial-branch=main", place=place)
    run("git", "add", "--all", place=place)
    run("git", "commit", "--quiet", "--message=one", place=place)
    run("git", "commit", "--quiet", "--allow-empty", "--message=two", place=place)
    return place


def expected(place: Path, commits: int) -> str:
    return rf"0\.1\.0\.dev{commits}\+g{run('git', 'rev-parse', '--short=7', 'HEAD', place=place)}[0-9a-f]*"


@needs_git
def test_a_commit_without_a_tag_is_a_development_version(checkout: Path, tmp_path: Path) -> None:
    assert re.fullmatch(expected(checkout, 2), hatch_version(checkout))
    shallow = tmp_path / "shallow"
    run("git", "clone", "--quiet", "--depth=1", f"file://{checkout}", shallow, place=tmp_path)
    assert re.fullmatch(expected(shallow, 1), hatch_version(shallow))


@needs_git
def test_a_tag_is_a_release(checkout: Path, tmp_path: Path) -> None:
    place = tmp_path / "tagged"
    run("git", "clone", "--quiet", f"file://{checkout}", place, place=tmp_path)
    run("git", "tag", "v0.1.0", place=place)
    assert hatch_version(place) == "0.1.0"
    run("git", "commit", "--quiet", "--allow-empty", "--message=after", place=place)
    assert hatch_version(place).startswith("0.1.1.dev1+g")


@needs_git
def test_a_tree_without_git_says_that_it_does_not_know(checkout: Path, tmp_path: Path) -> None:
    place = tmp_path / "tree"
    shutil.copytree(checkout, place, ignore=shutil.ignore_patterns(".git"))
    assert hatch_version(place) == UNBUILT == version._UNBUILT
    assert hatch_version(place, **{NAME: "0.1.0.dev7+gabc"}) == "0.1.0.dev7+gabc"  # as the images are built


@needs_git
@needs("make")
def test_make_follows_git(checkout: Path, tmp_path: Path) -> None:
    place = tmp_path / "followed"
    run("git", "clone", "--quiet", f"file://{checkout}", place, place=tmp_path)
    programs = Path(sys.executable).parent  # the environment that runs this test, which avoids creating another
    make = ("make", "--silent", f"VENV={programs.parent}", "version")
    for commits in (2, 3):
        told = run(*make, place=place)
        assert re.fullmatch(expected(place, commits), told)
        assert version._read(place / "sdk/draftwire/version.txt") == told
        run("git", "commit", "--quiet", "--allow-empty", "--message=three", place=place)


def test_a_file_that_is_not_there_or_empty_is_the_fallback(tmp_path: Path) -> None:
    file = tmp_path / "version.txt"
    assert version._read(file) == UNBUILT
    file.write_text("\n")
    assert version._read(file) == UNBUILT
    file.write_text("1.2.3\n")
    assert version._read(file) == "1.2.3"


def test_the_fallback_is_one_everywhere() -> None:
    """A release raises this version; CONTRIBUTING.md lists the places."""
    manifest = (ROOT / "deploy/kubernetes/draftwire.yaml").read_text()
    tags = set(re.findall(r"image: draftwire-\w+:([\w.]+)", manifest))
    tags.add(yaml.safe_load((ROOT / "deploy/helm/draftwire/Chart.yaml").read_text())["appVersion"])
    compose = set(re.findall(r"\$\{DRAFTWIRE_(?:VERSION|TAG):-([^}]+)\}", (ROOT / "docker-compose.yml").read_text()))
    (image,) = re.findall(r"^ARG DRAFTWIRE_VERSION=(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert compose == {image} == {UNBUILT} == {version._UNBUILT}
    assert tags in ({UNBUILT}, {UNBUILT.removesuffix(".dev0")})  # the latter in a release's commit


def test_the_range_of_torch_is_what_is_tested() -> None:
    """Another torch release may change bits, so only the one in constraints.txt is allowed."""
    (wanted,) = [each for each in PROJECT["project"]["optional-dependencies"]["serve"] if each.startswith("torch")]
    (tested,) = re.findall(r"^torch==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    major, minor, *_ = map(int, tested.split("."))
    allowed = Requirement(wanted).specifier
    assert allowed.contains(tested)
    assert not allowed.contains(f"{major}.{minor + 1}.0")
    assert not allowed.contains(f"{major}.{minor - 1}.0")
    guide = (ROOT / "docs/getting-started.md").read_text()
    assert f'pip install "{wanted}" --index-url https://download.pytorch.org/whl/cpu' in guide


@pytest.mark.slow
class TestWheels:
    @pytest.fixture
    def checkout(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A repository with files that belong to a wheel and files that do not."""
        built = (item[1:] for item in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
        return committed(tmp_path_factory.mktemp("checkout"), [*built, "models/draft", *SHARED])

    @needs_git
    def test_a_wheel_knows_its_version_and_so_does_one_out_of_a_source_distribution(
        self, checkout: Path, tmp_path: Path
    ) -> None:
        """What pip makes of the SDK's folder in a checkout."""
        build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path)
        run(*build, "--sdist", "--wheel", checkout / "sdk", place=tmp_path)
        (archive,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
        known = hatch_version(checkout)
        assert archive.name == f"draftwire-{known}.tar.gz"
        assert wheel.name == f"draftwire-{known}-py3-none-any.whl"
        with tarfile.open(archive) as opened:
            names = [name.partition("/")[2] for name in opened.getnames()]
            opened.extractall(tmp_path / "out", filter="data")
        assert not [
            name for name in names if name.startswith(("models/", "tests/", "benchmarks/", "docs/", "gateway_service/"))
        ]
        assert {"protos/draftwire/v1/verifier_service.proto", "draftwire/version.txt"} <= set(names)
        (source,) = (tmp_path / "out").iterdir()
        again = tmp_path / "again"
        run(*build[:-1], again, "--wheel", source, place=tmp_path)
        (second,) = again.glob("*.whl")
        assert second.name == wheel.name
        for each in (wheel, second):
            with zipfile.ZipFile(each) as opened_wheel:
                assert opened_wheel.read("draftwire/version.txt").decode().strip() == known
                assert {name.partition("/")[0] for name in opened_wheel.namelist()} == {
                    "draftwire",
                    "draftwire_tools",
                    f"draftwire-{known}.dist-info",
                }
                opened_wheel.extractall(tmp_path / each.parent.name)
            code = "import draftwire.version as v; print(v.__version__)"
            assert run(sys.executable, "-c", code, place=tmp_path / each.parent.name) == known
