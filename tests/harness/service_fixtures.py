"""Fixtures with services of the bundled models as processes, for the packages that test whole services."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.services import STEADY_VERIFIER, RunningService
from tests.harness.suite.spine import Spine

__all__ = ["good_drafter", "logs", "shared", "verifier"]


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RunningService]]:
    """Starts services that live until the run ends, each of them once in a run."""
    with Spine(tmp_path_factory) as spine:
        yield spine.service


@pytest.fixture(scope="session")
def verifier(shared: Callable[..., RunningService]) -> RunningService:
    """A verifier for which drafting pays, whatever a row costs on this processor."""
    return shared(STEADY_VERIFIER, "target")


@pytest.fixture(scope="session")
def good_drafter(shared: Callable[..., RunningService]) -> str:
    """Address of the trained draft model."""
    return shared("drafter_service", "draft").address
