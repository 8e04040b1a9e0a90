"""Groups of tests that run in one worker, and the order in which they begin.

`--dist loadgroup` gives each group to one worker as a whole. A group is a file, so that its fixtures are made once; the
tests that use a service of the whole run are one group across files, since they change that service's state. Groups
begin in the order of their recorded time, longest first, so that workers end together.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.harness.services.service_process import ServiceProcess
from tests.harness.suite.durations import Durations

SERVICES = "services"
"""The group of the tests that use a service of the whole run."""


class Groups:
    """The plugin that groups and orders tests."""

    def __init__(self, tier: str, durations: Durations) -> None:
        self._tier = tier
        self._durations = durations

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Marks each test with its group, and puts the longest groups first."""
        groups: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in items:
            groups[_group(item)].append(item)
        seconds = {
            name: sum(self._durations.seconds(file, self._tier) for file in {_file(item) for item in members})
            for name, members in groups.items()
        }
        for name, members in groups.items():
            for item in members:
                item.add_marker(pytest.mark.xdist_group(name))
        items[:] = [item for name in sorted(groups, key=lambda name: -seconds[name]) for item in groups[name]]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Raises UsageError if pytest-xdist is to group tests and does not, as 3.8 with pytest 9.2."""
        if getattr(session.config.option, "loadgroup", False) and any("@" not in item.nodeid for item in session.items):
            raise pytest.UsageError("this pytest-xdist does not group tests with this pytest: see constraints.txt")


def _group(item: pytest.Item) -> str:
    if any(_is_a_service(found[-1]) for found in item._fixtureinfo.name2fixturedefs.values()):  # type: ignore[attr-defined]
        return SERVICES
    return _file(item).removeprefix("tests/").removesuffix(".py")


def _is_a_service(fixture: pytest.FixtureDef[object]) -> bool:
    made = getattr(fixture.func, "__annotations__", {}).get("return")
    return fixture.scope == "session" and isinstance(made, type) and issubclass(made, ServiceProcess)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
