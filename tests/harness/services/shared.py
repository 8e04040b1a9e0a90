"""Fixtures of the services that many files share."""

import pytest

from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services

__all__ = ["good_drafter", "verifier"]


@pytest.fixture(scope="session")
def verifier(run_services: Services) -> ServiceProcess:
    """A verifier for which drafting pays, whatever a row costs on this processor."""
    return run_services.verifier()


@pytest.fixture(scope="session")
def good_drafter(run_services: Services) -> str:
    """Address of the trained draft model."""
    return run_services.drafter().address
