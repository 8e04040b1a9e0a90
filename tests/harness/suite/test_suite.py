"""The suite's own plugins, on small suites: tiers, groups, budget and the list of what was skipped."""

from __future__ import annotations

import json

import pytest

from tests.harness.suite import durations

pytestmark = pytest.mark.processes

pytest_plugins = ["pytester"]

PLUGINS = "from tests.conftest import pytest_addoption, pytest_configure\n"
SMALL_BUDGET = """
import tests.conftest
from tests.conftest import pytest_addoption

def pytest_configure(config):
    tests.conftest.pytest_configure(config)
    config.pluginmanager.get_plugin("draftwire Budget").test_seconds = 0.2
"""
SLOW_CLASS = """
import pytest

def test_cheap():
    pass

@pytest.mark.slow
class TestCrossings:
    @pytest.mark.parametrize("kind", ["first", "second"])
    def test_kinds(self, kind):
        pass
"""
NEVER_IMPORTED = "import pytest\npytestmark = pytest.mark.slow\nraise AssertionError('imported')\n"
PROCESSES = "import pytest\npytestmark = pytest.mark.processes\ndef test_it(): pass\n"
SPENDS = """
import time

import pytest

def spend():
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass

@pytest.fixture(scope="module")
def model():
    spend()

def test_with_a_shared_fixture(model):
    pass

def test_by_itself():
    spend()

@pytest.mark.slow
class TestCrossings:
    def test_by_itself(self):
        spend()
"""
SLOW_FIXTURE = """
import time

import pytest

def spend():
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass

def test_cheap():
    pass

@pytest.mark.slow
class TestCrossings:
    @pytest.fixture(scope="class")
    def model(self):
        spend()

    def test_with_a_shared_fixture(self, model):
        spend()
"""
ENDS_A_PROCESS = """
import subprocess, sys

def test_a_process():
    subprocess.run([sys.executable, "-S", "-c", "while __import__('time').process_time() < 0.4: pass"], check=True)
"""
GARBAGE = """
import gc

LOOKED_FOR = gc.isenabled()

def test_it():
    assert not LOOKED_FOR and gc.isenabled() and gc.get_freeze_count()
"""
SERVICES = """
import pytest
from tests.harness.services.service_process import ServiceProcess

@pytest.fixture(scope="session")
def verifier() -> ServiceProcess:
    return None

@pytest.fixture
def client(verifier):
    return None

def test_a_client(client):
    pass

def test_nothing():
    pass
"""
REGISTERED = """
import pytest
from tests.conftest import pytest_addoption, pytest_configure

@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    for item in items:
        print(item.name, "is in", *item.get_closest_marker("xdist_group").args)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """An empty suite with the plugins."""
    pytester.makeconftest(PLUGINS)
    pytester.makeini(
        "[pytest]\naddopts = -pno:schemathesis\nasyncio_default_fixture_loop_scope = function\n"
        "markers =\n    slow: slow\n    processes: processes\n"
    )
    return pytester


@pytest.mark.parametrize(("tier", "count"), [("default", 2), ("quick", 1), ("all", 4), ("slow", 2)])
def test_a_tier_has_its_files_and_classes(suite: pytest.Pytester, tier: str, count: int) -> None:
    suite.makepyfile(test_kinds=SLOW_CLASS, test_services=PROCESSES)
    suite.runpytest_inprocess("--tier", tier).assert_outcomes(
        passed=count, deselected={"default": 0, "quick": 0, "all": 0, "slow": 2}[tier]
    )


def test_a_slow_file_is_not_imported(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_cheap="def test_it(): pass", test_slow=NEVER_IMPORTED)
    suite.runpytest_inprocess("--tier", "default").assert_outcomes(passed=1)
    suite.runpytest_inprocess("--tier", "all").assert_outcomes(errors=1)


@pytest.mark.parametrize(
    "test",
    [
        "@pytest.mark.slow\ndef test_it(): pass",
        "@pytest.mark.parametrize('n', [0, pytest.param(1, marks=pytest.mark.slow)])\ndef test_it(n): pass",
    ],
    ids=["a function", "a parameter"],
)
def test_no_test_is_slow_by_itself(suite: pytest.Pytester, test: str) -> None:
    suite.makepyfile(f"import pytest\n{test}\n")
    result = suite.runpytest_inprocess("--tier", "default")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*`slow` marks a whole file or a whole class"])


def test_fixtures_of_slow_tests_are_recorded_as_slow(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "FILE", suite.mkdir("recorded") / "durations.json")
    suite.makepyfile(test_them=SLOW_FIXTURE)
    suite.runpytest_inprocess("--tier", "all", "--record-durations").assert_outcomes(passed=2)
    recorded = json.loads(durations.FILE.read_text())
    assert recorded["slow"]["test_them.py"] >= 0.5 and recorded["default"].get("test_them.py", 0.0) < 0.3


def test_no_garbage_is_looked_for_while_tests_are_collected(suite: pytest.Pytester) -> None:
    suite.makepyfile(GARBAGE)
    suite.runpytest_inprocess().assert_outcomes(passed=1)


def test_a_test_that_uses_too_much_fails(suite: pytest.Pytester) -> None:
    suite.makeconftest(SMALL_BUDGET)
    suite.makepyfile(test_them=SPENDS)
    result = suite.runpytest_inprocess("--tier", "all")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["used 0.* processor seconds, and a test of the default tier may use 0.2*", "*fixture model, for*"]
    )


def test_a_process_fails_a_quick_test(suite: pytest.Pytester) -> None:
    suite.makepyfile(ENDS_A_PROCESS)
    result = suite.runpytest_inprocess("--tier", "quick")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["started a process: mark its file with pytest.mark.processes"])


def test_what_its_processes_use_counts(suite: pytest.Pytester) -> None:
    suite.makeconftest(SMALL_BUDGET)
    suite.makepyfile(ENDS_A_PROCESS)
    suite.runpytest_inprocess("--tier", "default").assert_outcomes(failed=1)


def test_users_of_a_service_are_one_group(suite: pytest.Pytester) -> None:
    suite.makeconftest(REGISTERED)
    suite.makepyfile(test_services=SERVICES, test_others="def test_others(): pass")
    suite.runpytest_inprocess("-s").stdout.fnmatch_lines_random(
        ["*test_a_client is in services", "*test_nothing is in test_services", "*test_others is in test_others"]
    )


def test_missing_programs_are_listed_once(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        "import pytest\nfrom tests.harness.suite.skipped import needs, skip_without\n"
        "@needs('no-such-program')\ndef test_first(): pass\n"
        "def test_second(): skip_without('no-such-program')\n"
        "def test_third(): pytest.skip('it is Sunday')\n"
    )
    suite.runpytest_inprocess().stdout.fnmatch_lines(
        ["*2  no-such-program is not installed", "*apt-get install no-such-program", "*1  it is Sunday"]
    )
