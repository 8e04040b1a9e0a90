"""Fixtures with a verifier and drafters in this process, for the packages that test their conversation."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from draftwire_core.engine.loading import step_timing
from draftwire_core.pool.changes import swap as drafter_swap
from draftwire_core.pool.standing.pause_policy import PausePolicy
from tests.harness.models.tiny_checkpoint import tiny_checkpoint
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.in_process_verifier import InProcessVerifier
from tests.harness.services.services import Services
from tests.harness.stand_ins.scripted_drafter import ScriptedDrafter
from tests.harness.waiting import PATIENCE

__all__ = [
    "checkpoint",
    "listening",
    "other_checkpoint",
    "patient",
    "scripted_drafters_found_nothing_wrong",
    "stranger",
    "timed_twice",
    "tireless",
    "twin",
    "verifier",
]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target model's checkpoint."""
    return tiny_checkpoint(tmp_path_factory)


@pytest.fixture(scope="session")
def other_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft model's checkpoint that agrees with the target by chance only."""
    return tiny_checkpoint(tmp_path_factory, seed=1)


@pytest.fixture
async def verifier(services: Services, checkpoint: Path) -> AsyncIterator[InProcessVerifier]:
    async with services.in_process_verifier(checkpoint) as made:
        yield made


@pytest.fixture
async def twin(services: Services, checkpoint: Path, verifier: InProcessVerifier) -> AsyncIterator[InProcessDrafter]:
    """A drafter that runs the target model itself, at `twin`."""
    async with services.in_process_drafter(checkpoint) as drafter:
        verifier.network.listen("twin:1", drafter.servicer.converse)
        verifier.engine.drafts_awaited = True
        yield drafter
        await verifier.until(lambda: drafter.model.pool.used == 0)


@pytest.fixture
async def stranger(
    services: Services, other_checkpoint: Path, verifier: InProcessVerifier
) -> AsyncIterator[InProcessDrafter]:
    """A drafter that is hardly ever right, at `stranger`."""
    async with services.in_process_drafter(other_checkpoint) as drafter:
        verifier.network.listen("stranger:1", drafter.servicer.converse)
        verifier.engine.drafts_awaited = True
        yield drafter
        await verifier.until(lambda: drafter.model.pool.used == 0)


@pytest.fixture
def listening(verifier: InProcessVerifier) -> Callable[..., ScriptedDrafter]:
    """Returns a function that puts a scripted drafter on an address."""

    def listen(address: str, *arguments: Any, **fields: Any) -> ScriptedDrafter:
        drafter = ScriptedDrafter(*arguments, **fields)
        verifier.network.listen(address, drafter.converse)
        return drafter

    return listen


@pytest.fixture(autouse=True)
def scripted_drafters_found_nothing_wrong() -> Iterator[None]:
    ScriptedDrafter.failed.clear()
    yield
    assert not ScriptedDrafter.failed


@pytest.fixture(autouse=True)
def tireless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafters are told of each step whatever they bring: tests wait for what they draft, and some draft badly."""
    monkeypatch.setattr(PausePolicy, "paused", False)


@pytest.fixture(autouse=True)
def timed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded model's steps are timed that often, which is most of a tiny model's load."""
    monkeypatch.setattr(step_timing, "_MOST_TIMES", 2)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengthens the time limit of moves, so that a test fails if a swap waits until the limit unnecessarily."""
    monkeypatch.setattr(drafter_swap, "_MOVE_SECONDS", 10 * PATIENCE)
