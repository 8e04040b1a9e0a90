"""The fixtures that start services: one for each time that services can live."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.harness.services.run_services import RunServices
from tests.harness.services.services import Services


@pytest.fixture
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """Services that end with the test."""
    with Services(tmp_path_factory.mktemp("services")) as made:
        yield made


@pytest.fixture(scope="module")
def module_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """Services that end with the module."""
    with Services(tmp_path_factory.mktemp("services")) as made:
        yield made


@pytest.fixture(scope="session")
def run_services(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Services:
    """Services that end with the run, each of them started once in a run."""
    with ExitStack() as until_its_end:
        made = until_its_end.enter_context(RunServices(tmp_path_factory))
        # Not by the fixture's end, which counts as a test's time: a worker waits until all have ended their tests.
        pytestconfig.add_cleanup(until_its_end.pop_all().close)
    return made
