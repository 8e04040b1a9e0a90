"""The budget of the suite: processor seconds of each test, of the shared fixtures and of a whole run.

A test of the default tier fails if it uses more than `TEST_SECONDS`: its own call and the fixtures made for it alone,
in this process and in those that it starts. Fixtures that several tests share are listed by themselves. The fork
server's imports and the services that a whole run shares count for the run alone.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from tests.harness import processes
from tests.harness.services.run_services import run_processes
from tests.harness.suite.durations import Durations
from tests.harness.suite.engines import ON_VLLM
from tests.harness.suite.processor_time import children, processor_time

TEST_SECONDS = 3.0
"""Processor seconds that a test of the default tier may use."""
RUN_MINUTES = 18.0
"""Processor minutes that the default tier is meant to use, on all cores together."""
_LISTED = 20
_OF_SHARED = "_shared_fixture_seconds"


class Budget:
    """The plugin that measures; in a run with workers each of them measures, and the controller reports."""

    def __init__(self, tier: str, durations: Durations, *, record: bool) -> None:
        """record: whether the files' seconds are written down at the end."""
        self.test_seconds = float("inf") if ON_VLLM else TEST_SECONDS
        self._tier = tier
        self._durations = durations
        self._record = record
        self._tests: dict[str, float] = {}
        self._slow: list[str] = []
        """The slow ones among the tests."""
        self._fixtures: Counter[str] = Counter()
        """Seconds of fixtures that several tests share, by name and the file of the first test."""
        self._slow_fixtures: Counter[str] = Counter()
        """Those of them that a slow test was the first to need, by file."""
        self._shared = 0.0
        """Seconds of such fixtures since the test began."""
        self._ended: float | None = None
        """What had been used when the last test ended; None at the beginning."""
        self._workers: list[dict[str, Any]] = []

    # Measuring, where tests run

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Notes what a test has used, its teardown included, unless everything else is torn down as well."""
        self._before = _used() if self._ended is None else self._ended
        self._shared = self._called = 0.0
        self._current = _without_group(item.nodeid).partition("::")[0]
        slow = self._current_is_slow = item.get_closest_marker("slow") is not None
        result = yield
        self._ended = None if nextitem is None else _used()
        ended = self._called if self._ended is None else self._ended
        self._tests[item.nodeid] = max(0.0, ended - self._before - self._shared)
        if slow:
            self._slow.append(item.nodeid)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fails a test of the default tier that used too much, or one of the quick tier that started a process."""
        quick = self._tier == "quick"
        running, ended = set(children() if quick else ()), _ended_children()
        result = yield
        slow = item.get_closest_marker("slow") is not None
        self._called = _used()
        used = self._called - self._before - self._shared
        if not slow and used > self.test_seconds:
            pytest.fail(
                f"used {used:.1f} processor seconds, and a test of the default tier may use {self.test_seconds:g}: "
                "use less, or move it to a slow class or file",
                pytrace=False,
            )
        if quick and (_ended_children() > ended or not running.issuperset(children())):
            pytest.fail("started a process: mark its file with pytest.mark.processes", pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        """Takes what a shared fixture uses from the account of the test that happens to come first."""
        if fixturedef.scope == "function":
            return (yield)
        before, inside = _used(), self._shared
        try:
            return (yield)
        finally:
            used = max(0.0, _used() - before - (self._shared - inside))
            self._shared += used
            self._fixtures[f"{fixturedef.argname}, for {self._current}"] += used
            if self._current_is_slow:
                self._slow_fixtures[self._current] += used

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hands a worker's account to the controller."""
        found = {
            "tests": self._tests,
            "slow": self._slow,
            "fixtures": dict(self._fixtures),
            "slow fixtures": dict(self._slow_fixtures),
        }
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["budget"] = found
        else:
            self._workers.append(found)

    # Reporting, where there is a terminal

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Takes a worker's account."""
        if (found := getattr(node, "workeroutput", {}).get("budget")) is not None:
            self._workers.append(found)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the most expensive tests and fixtures, the packages' sums and the whole run's."""
        tests: dict[str, float] = {}
        slow: set[str] = set()
        fixtures: Counter[str] = Counter()
        of_slow: Counter[str] = Counter()
        for each in self._workers:
            tests |= {_without_group(name): used for name, used in each["tests"].items()}
            slow |= {_without_group(name) for name in each["slow"]}
            fixtures.update(each["fixtures"])
            of_slow.update(each["slow fixtures"])
        if not tests or terminalreporter.config.option.collectonly:
            return
        write = terminalreporter.write_line
        terminalreporter.section("processor time")
        files: Counter[str] = Counter()
        for name, used in tests.items():
            files[name.partition("::")[0]] += used  # type: ignore[assignment]
        for name, used in fixtures.items():
            files[name.partition(", for ")[2]] += used  # type: ignore[assignment]
        packages: Counter[str] = Counter()
        for file, used in files.items():
            packages[
                "/".join(
                    file.split("/")[: 4 if "draftwire_core/engine" in file else 3 if "draftwire_core" in file else 2]
                )
            ] += used
        for name, used in sorted(packages.items(), key=lambda each: -each[1]):
            if used >= 1:
                write(f"{used:8.1f} s  {name}")
        write(f"the {_LISTED} most expensive tests, and shared fixtures that took as much:")
        least = sorted(tests.values(), reverse=True)[:_LISTED][-1]
        listed = {f"fixture {name}": used for name, used in fixtures.items() if used >= least} | {
            name: used for name, used in tests.items() if used >= max(least, 0.05)
        }
        for name, used in sorted(listed.items(), key=lambda each: -each[1]):
            write(f"{used:8.1f} s  {name}")
        minutes = processor_time() / 60  # workers are descendants
        compared = f", of {RUN_MINUTES:g} that the default tier may use" if self._tier == "default" else ""
        write(f"processor minutes of the whole run: {minutes:.1f}{compared}")
        if self._record:
            for name in slow:
                of_slow[name.partition("::")[0]] += tests[name]  # type: ignore[assignment]
            default = {file: used - of_slow[file] for file, used in files.items()}
            self._durations.record({} if self._tier == "slow" else default, dict(of_slow))


def _without_group(name: str) -> str:
    """A test's name without the group that xdist appends."""
    return name[: name.rfind("@")] if name.rfind("@") > name.rfind("]") else name


def _ended_children() -> int:
    """A number that grows with each child that has ended: the pages that such children had to get."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


def _used() -> float:
    return processor_time(without=processes.shared_processes() | run_processes())
