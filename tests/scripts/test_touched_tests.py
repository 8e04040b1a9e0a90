"""The choice of slow tests: by the import graph, nearest first, within a number of processor seconds."""

import subprocess

import pytest

from scripts.touched_tests import LAST_FULL_RUN, ROOT, changed_files, distances, fit

SLOTS = "tests/draftwire_core/engine/kv/test_kv_slots.py"
SESSION = "tests/drafter_service/conversation/test_drafting_session.py"
CLI = "tests/end_to_end/test_cli.py"
DOCUMENTS = "tests/end_to_end/test_documents.py"
IMAGE = "tests/deploy/test_image.py"


def texts(*files: str) -> dict[str, str]:
    return {file: (ROOT / file).read_text(encoding="utf-8") for file in files}


@pytest.fixture(scope="module")
def near() -> dict[str, dict[str, int]]:
    """Distances of four files from changes of several kinds."""
    changes = (
        "draftwire_core/engine/kv/kv_slots.py",
        "draftwire_core/engine/kernels/csrc/abi.c",
        "gateway_service/app.py",
        "Dockerfile",
        CLI,
    )
    found = texts(SLOTS, SESSION, CLI, DOCUMENTS, IMAGE)
    return {change: distances([change], found) for change in changes}


def test_a_module_touches_those_that_import_it(near: dict[str, dict[str, int]]) -> None:
    found = near["draftwire_core/engine/kv/kv_slots.py"]
    assert found[SLOTS] == 1
    assert found[SESSION] > 1
    assert IMAGE not in found


def test_services_that_are_started_count(near: dict[str, dict[str, int]]) -> None:
    """CLI has a verifier by its folder's fixtures, DOCUMENTS starts a gateway."""
    assert CLI in near["draftwire_core/engine/kv/kv_slots.py"] and CLI not in near["gateway_service/app.py"]
    assert DOCUMENTS in near["gateway_service/app.py"]


def test_sources_in_c_count_as_their_library(near: dict[str, dict[str, int]]) -> None:
    assert SLOTS in near["draftwire_core/engine/kernels/csrc/abi.c"]


def test_what_nothing_imports_touches_few(near: dict[str, dict[str, int]]) -> None:
    assert SLOTS not in near["gateway_service/app.py"] and SESSION not in near["gateway_service/app.py"]


def test_files_of_other_kinds_touch_those_that_name_them(near: dict[str, dict[str, int]]) -> None:
    assert IMAGE in near["Dockerfile"] and SLOTS not in near["Dockerfile"]


def test_a_changed_test_is_nearest(near: dict[str, dict[str, int]]) -> None:
    assert near[CLI] == {CLI: 0}


def test_the_nearest_and_cheapest_fit() -> None:
    near = {"far": 5, "near": 1, "long": 1, "unrecorded": 1}
    seconds = {"far": 2.0, "near": 3.0, "long": 100.0}
    assert fit(near, seconds, 10.0) == (["near", "far"], ["unrecorded", "long"])
    assert fit(near, seconds, 65.0) == (["near", "unrecorded", "far"], ["long"])


@pytest.mark.processes
class TestGit:
    def test_changes_since_a_commit(self) -> None:
        if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=False).returncode:
            pytest.skip("this is no clone")
        assert changed_files("HEAD") == []
        assert changed_files("0" * 40) is None


def test_the_last_full_run_is_a_commit() -> None:
    assert len(LAST_FULL_RUN.read_text().strip()) == 40
