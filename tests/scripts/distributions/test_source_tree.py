"""The source trees of the distributions, made from this checkout."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from draftwire.version import __version__
from scripts.distributions import source_tree
from scripts.distributions.project_file import SDK, SERVICES
from scripts.distributions.references import Move, UnknownReferenceError
from scripts.distributions.source_tree import packages, write_tree
from tests.harness.checkout import ROOT
from tests.harness.waiting import LONG_PATIENCE

CHECKOUT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOR_DEVELOPERS = {"dev", "docs"}
VERSION = "1.2.3"


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tree of each distribution, without the rewriting of references, which takes most of the time."""
    out = tmp_path_factory.mktemp("trees")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Move, "rewrite", lambda _, source, __: source)
        return {name: write_tree(name, ROOT, out, VERSION) for name in (SDK, SERVICES)}


@pytest.fixture(scope="module")
def projects(trees: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """The `project` table of each distribution."""
    return {name: tomllib.loads((tree / "pyproject.toml").read_text())["project"] for name, tree in trees.items()}


def test_the_services_need_the_sdk_of_their_version(projects: dict[str, dict[str, Any]]) -> None:
    assert projects[SERVICES]["dependencies"] == [f"draftwire=={VERSION}"]
    assert projects[SDK]["dependencies"] == CHECKOUT["project"]["dependencies"]
    assert {each["version"] for each in projects.values()} == {VERSION}


def test_every_extra_of_the_checkout_is_one_of_a_distribution(projects: dict[str, dict[str, Any]]) -> None:
    known = CHECKOUT["project"]["optional-dependencies"]
    sdk, services = (projects[name]["optional-dependencies"] for name in (SDK, SERVICES))
    assert known.keys() - FOR_DEVELOPERS == sdk.keys() == services.keys() | {"bench"}
    for extra in known.keys() - FOR_DEVELOPERS:
        if extra in services:
            assert services[extra] == known[extra]
            assert sdk[extra] in (known[extra], [f"draftwire-services[{extra}]=={VERSION}"])
        else:
            assert sdk[extra] == known[extra]


def test_every_entry_point_of_the_checkout_is_one_of_a_distribution(
    projects: dict[str, dict[str, Any]], trees: dict[str, Path]
) -> None:
    found: dict[str, str] = {}
    for name, project in projects.items():
        entries = project["scripts"] | project.get("entry-points", {}).get("draftwire.commands", {})
        for entry in entries.values():
            module = trees[name].joinpath(*entry.partition(":")[0].split("."))
            assert module.with_suffix(".py").exists() or (module / "__init__.py").exists(), entry
        found |= entries
    of_checkout = CHECKOUT["project"]["scripts"] | CHECKOUT["project"]["entry-points"]["draftwire.commands"]
    assert {name: entry.removeprefix("draftwire_services.") for name, entry in found.items()} == of_checkout


def test_the_folders_of_the_checkout_are_no_names_of_a_tree(trees: dict[str, Path]) -> None:
    top = {each.parent.name for tree in trees.values() for each in tree.glob("*/__init__.py")}
    assert top == {"draftwire", "draftwire_services", "draftwire_vllm", "draftwire_sglang"}
    inside = {each.name for each in (trees[SERVICES] / "draftwire_services").iterdir() if each.is_dir()}
    assert {Path(each).name for each in packages(CHECKOUT)} == inside | {
        "draftwire",
        "draftwire_vllm",
        "draftwire_sglang",
    }


def test_a_tree_has_the_contract_and_its_version(trees: dict[str, Path]) -> None:
    for tree in trees.values():
        assert (tree / "protos/draftwire/v1/verifier_service.proto").exists()
        assert {"README.md", "LICENSE", "CHANGELOG.md"} <= {each.name for each in tree.iterdir()}
    assert (trees[SDK] / "draftwire/version.txt").read_text() == f"{VERSION}\n"


def test_a_reference_that_cannot_be_moved_stops_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_tree, "packages", lambda project: ["edge_drafting", "service_runtime"])
    for name in ("edge_drafting", "service_runtime"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / name, tmp_path)
    write_tree(SERVICES, tmp_path, tmp_path / "out", VERSION)
    (tmp_path / "edge_drafting/__init__.py").write_text('PLACE = "service_runtime/process"\n')
    with pytest.raises(UnknownReferenceError, match=r"^edge_drafting/__init__.py:1: service_runtime in "):
        write_tree(SERVICES, tmp_path, tmp_path / "out", VERSION)


@pytest.mark.slow
class TestReferences:
    @pytest.mark.parametrize("name", [SDK, SERVICES])
    def test_every_reference_can_be_moved(self, name: str, tmp_path: Path) -> None:
        tree = write_tree(name, ROOT, tmp_path, VERSION)
        sources = [file.read_text() for file in tree.rglob("*.py")]
        assert any("from draftwire_services." in source for source in sources)
        assert not any(re.search(r"^\s*from (gateway|speculative_engine)\b", each, re.MULTILINE) for each in sources)


@pytest.mark.processes
class TestCheckout:
    @pytest.mark.parametrize("target", ["wheel", "sdist"])
    def test_a_checkout_is_not_built_with_its_generic_names(self, target: str, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", tmp_path]
        # The version is given so that the checkout's own file of it stays as it is.
        settings = os.environ | {"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_DRAFTWIRE": __version__}
        done = subprocess.run(
            command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=LONG_PATIENCE, check=False
        )
        assert done.returncode != 0
        assert "a checkout can be installed editable only" in done.stderr + done.stdout
        assert not list(tmp_path.iterdir())
