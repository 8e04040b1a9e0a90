"""The project files of the two distributions, which take from the checkout's what they have in common with it."""

from __future__ import annotations

import tomllib

import pytest
from hatchling.metadata.core import CoreMetadata, ProjectMetadata
from hatchling.plugin.manager import PluginManager

from scripts.release.build_wheels import SDK, SERVICES
from tests.harness.checkout import ROOT

CHECKOUT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOR_DEVELOPERS = {"dev", "docs"}
VERSION = "1.2.3"


def metadata(folder: str) -> CoreMetadata:
    return ProjectMetadata(folder, PluginManager()).core


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> CoreMetadata:
    """What the SDK's wheel says about itself."""
    monkeypatch.setenv("SETUPTOOLS_SCM_PRETEND_VERSION_FOR_DRAFTWIRE", VERSION)
    return metadata(str(SDK))


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> CoreMetadata:
    """What the services' wheel says about itself."""
    monkeypatch.setenv("SETUPTOOLS_SCM_PRETEND_VERSION_FOR_DRAFTWIRE", VERSION)
    return metadata(str(SERVICES))


def test_the_services_need_the_sdk_of_their_version(sdk: CoreMetadata, services: CoreMetadata) -> None:
    assert (sdk.name, services.name) == ("draftwire", "draftwire-services")
    assert sdk.version == services.version == VERSION
    assert services.dependencies == [f"draftwire=={VERSION}"]
    assert sdk.dependencies == metadata(str(ROOT)).dependencies


def test_every_extra_of_the_checkout_is_one_of_a_distribution(sdk: CoreMetadata, services: CoreMetadata) -> None:
    known = metadata(str(ROOT)).optional_dependencies
    here, there = sdk.optional_dependencies, services.optional_dependencies
    assert known.keys() - FOR_DEVELOPERS == here.keys() == there.keys() | {"bench"}
    for extra in here:
        if extra in there:
            assert there[extra] == known[extra]
            assert here[extra] in (known[extra], [f"draftwire-services[{extra}]=={VERSION}"])
        else:
            assert here[extra] == known[extra]


def test_every_entry_point_of_the_checkout_is_one_of_a_distribution(sdk: CoreMetadata, services: CoreMetadata) -> None:
    assert sdk.scripts | services.scripts == CHECKOUT["scripts"]
    found: dict[str, dict[str, str]] = {}
    for group, entries in (*sdk.entry_points.items(), *services.entry_points.items()):
        found[group] = found.get(group, {}) | entries
    assert found == CHECKOUT["entry-points"]


def test_type_checkers_read_the_packages_that_programs_import() -> None:
    """Without the marker mypy refuses `from draftwire_core.engine import ...`, and EdgeClient is Any for it."""
    for package in (SDK / "draftwire", ROOT / "draftwire_core"):
        assert (package / "py.typed").is_file()


def test_they_are_described_as_the_checkout_is(sdk: CoreMetadata, services: CoreMetadata) -> None:
    for each in (sdk, services):
        assert each.readme == (ROOT / "README.md").read_text()
        assert each.license_expression == CHECKOUT["license"]
        assert set(each.classifiers) == set(CHECKOUT["classifiers"])
        assert each.requires_python == CHECKOUT["requires-python"]
    for folder in (SDK, SERVICES):
        assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
