"""Real services with the bundled models, as child processes.

A start costs seconds of a core, so tests share the services that they leave intact: `verifier`, `good_drafter`,
`bad_drafter` and `untrained_drafter` live for the whole run. Services that a test kills or starts with its own flags
come from `services`, and end with the test. `client` leaves the shared verifier without drafters.
"""

from collections.abc import Iterator

import pytest

from draftwire import Client
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.services.shared import *  # noqa: F403
from tests.harness.waiting import PATIENCE


@pytest.fixture(scope="session")
def bad_drafter(run_services: Services) -> str:
    """Address of an early checkpoint of the draft model."""
    return run_services.drafter("draft-early").address


@pytest.fixture(scope="session")
def untrained_drafter(run_services: Services) -> str:
    """Address of an untrained draft model."""
    return run_services.drafter("draft-untrained").address


@pytest.fixture
def client(verifier: ServiceProcess) -> Iterator[Client]:
    """A client of the shared verifier, which has no drafters before and after the test."""
    with Client(verifier.address, timeout=PATIENCE) as made:
        yield made
        for drafter in made.drafters.list():
            made.drafters.detach(drafter.name)
