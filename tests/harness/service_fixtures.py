"""Fixtures with services of the bundled models as processes, for the packages that test whole services."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.services import STEADY_VERIFIER, RunningService

__all__ = ["good_drafter", "logs", "shared", "verifier"]


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def shared(logs: Path) -> Iterator[Callable[..., RunningService]]:
    """Starts services that live for the whole session."""
    with ExitStack() as running:

        def start(module: str, model: str, *flags: str) -> RunningService:
            service = RunningService(module, model, flags, logs)
            running.callback(service.kill)
            return service

        yield start


@pytest.fixture(scope="session")
def verifier(shared: Callable[..., RunningService]) -> RunningService:
    """A verifier for which drafting pays, whatever a row costs on this processor."""
    return shared(STEADY_VERIFIER, "target")


@pytest.fixture(scope="session")
def good_drafter(shared: Callable[..., RunningService]) -> str:
    """Address of the trained draft model."""
    return shared("drafter_service", "draft").address
