"""What draftwire is made of: the packages, their licences and the list of them."""

import json
import os
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from scripts.release.licences import found_by, licences, refused
from scripts.release.packages import brought, pinned, vendored
from scripts.release.sbom import component, only
from tests.harness.checkout import ROOT
from verifier_service import service  # noqa: F401 -- for what it imports

TOOL = ROOT / ".venv/tools/bin/pip-licenses"


def test_what_users_get_is_listed_and_what_developers_need_is_not() -> None:
    names = brought()
    assert {"grpcio", "torch", "transformers", "fastapi", "opentelemetry-sdk", "typing-extensions"} <= names
    assert not {"pytest", "ruff", "mkdocs", "grpcio-tools", "ziglang", "draftwire"} & names
    assert {each.partition("==")[0] for each in pinned()} == names
    assert not any("+" in each for each in pinned())


def test_what_a_service_imports_is_listed() -> None:
    """The list is of what is imported, too, and not of declarations alone."""
    of_module = metadata.packages_distributions()
    imported = {
        canonicalize_name(of_module[name][0])
        for name in {module.partition(".")[0] for module in sys.modules}
        if name in of_module
        and name in ("torch", "transformers", "grpc", "pydantic", "structlog", "llguidance", "gguf")
    }
    assert len(imported) >= 5
    assert imported <= brought()


@pytest.mark.parametrize(
    ("told", "names"),
    [
        ("MIT", {"MIT"}),
        ("MIT License; Apache Software License", {"MIT", "Apache-2.0"}),
        ("Apache-2.0 WITH LLVM-exception AND (MIT OR ISC)", {"Apache-2.0", "LLVM-exception", "MIT", "ISC"}),
        ("UNKNOWN", {"UNKNOWN"}),
        ("", set()),
    ],
)
def test_the_licences_of_a_package(told: str, names: set[str]) -> None:
    assert licences(told) == names


def test_what_is_not_allowed_or_not_known_is_refused() -> None:
    found = {
        "a": "MIT",
        "b": "GPL-3.0-only",
        "c": "UNKNOWN",
        "d": "",
        "e": "MIT AND AGPL-3.0-or-later",
        "f": "BSD License",
    }
    assert refused(found).keys() == {"b", "c", "d", "e"}


def test_libraries_of_the_page_are_listed_with_their_licences() -> None:
    packages = {each["name"]: each for each in vendored()}
    assert {"marked", "@highlightjs/cdn-assets"} == packages.keys()
    assert refused({name: each["license"] for name, each in packages.items()}) == {}
    listed = component(packages["@highlightjs/cdn-assets"])
    assert listed["purl"] == f"pkg:npm/%40highlightjs/cdn-assets@{listed['version']}"
    assert len(listed["hashes"][0]["content"]) == 128
    for file, name in (("marked.js", "marked"), ("highlight.js", "@highlightjs/cdn-assets")):
        head = (ROOT / "gateway_service/console/static/vendor" / file).read_text(encoding="utf-8")[:300]
        assert packages[name]["version"] in head


def test_the_list_has_the_packages_of_an_installation_alone() -> None:
    told = {
        "bomFormat": "CycloneDX",
        "metadata": {"component": {"bom-ref": "root", "name": "draftwire"}},
        "components": [
            {"bom-ref": "a==1", "name": "A"}, {"bom-ref": "b==1", "name": "b"}, {"bom-ref": "t", "name": "t"},
        ],
        "dependencies": [
            {"ref": "root", "dependsOn": ["a==1", "t"]}, {"ref": "a==1", "dependsOn": ["b==1", "t"]}, {"ref": "b==1"},
            {"ref": "t", "dependsOn": ["b==1"]},
        ],
    }  # fmt: skip
    listed = only(told, {"a", "b"}, "1.2.3")
    assert [each["name"] for each in listed["components"]] == ["A", "b"]
    assert listed["dependencies"] == [
        {"ref": "root", "dependsOn": ["a==1"]}, {"ref": "a==1", "dependsOn": ["b==1"]}, {"ref": "b==1"},
    ]  # fmt: skip
    assert listed["metadata"]["component"]["version"] == "1.2.3"


@pytest.mark.processes
class TestPipLicenses:
    def test_every_package_has_to_be_told_about(self, tmp_path: Path) -> None:
        program = tmp_path / "pip-licenses"
        one = json.dumps([{"Name": "torch", "License": "BSD-3-Clause"}])
        program.write_text(f"#!/bin/sh\necho '{one}'\n")
        program.chmod(0o755)
        with pytest.raises(RuntimeError, match=r"says nothing about .*\bgrpcio\b"):
            found_by(program)

    @pytest.mark.skipif(not os.access(TOOL, os.X_OK), reason="make licences has not installed its tools")
    def test_every_licence_here_is_allowed(self) -> None:
        assert refused(found_by(TOOL)) == {}
