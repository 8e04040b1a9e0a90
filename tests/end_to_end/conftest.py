"""Real services with the bundled models, as child processes.

A start costs seconds of a core, so tests share the services that they leave intact: `verifier`, `good_drafter`,
`bad_drafter` and `untrained_drafter` live for the whole session. Services that a test kills or starts with its own
flags come from `start_verifier` and `start_drafter`, and end with the test. `client` leaves the shared verifier without
drafters.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from draftwire import Client
from tests.harness.service_fixtures import *  # noqa: F403
from tests.harness.services import STEADY_VERIFIER, RunningService, StartService
from tests.harness.waiting import PATIENCE


@pytest.fixture(scope="session")
def bad_drafter(shared: Callable[..., RunningService]) -> str:
    """Address of an early checkpoint of the draft model."""
    return shared("drafter_service", "draft-early").address


@pytest.fixture(scope="session")
def untrained_drafter(shared: Callable[..., RunningService]) -> str:
    """Address of an untrained draft model."""
    return shared("drafter_service", "draft-untrained").address


@pytest.fixture
def start_verifier(logs: Path) -> Iterator[StartService]:
    """Starts verifiers that end with the test, with the same step costs as the shared one."""
    with ExitStack() as running:

        def start(model: str = "target", *flags: str) -> RunningService:
            service = RunningService(STEADY_VERIFIER, model, flags, logs)
            running.callback(service.kill)
            return service

        yield start


@pytest.fixture
def start_drafter(logs: Path) -> Iterator[StartService]:
    """Starts drafters that end with the test."""
    with ExitStack() as running:

        def start(model: str = "draft", *flags: str) -> RunningService:
            service = RunningService("drafter_service", model, flags, logs)
            running.callback(service.kill)
            return service

        yield start


@pytest.fixture
def client(verifier: RunningService) -> Iterator[Client]:
    """A client of the shared verifier, which has no drafters before and after the test."""
    with Client(verifier.address, timeout=PATIENCE) as made:
        yield made
        for drafter in made.drafters.list():
            made.drafters.detach(drafter.name)
