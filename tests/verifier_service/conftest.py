"""Verifiers and drafters of these tests."""

import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.tiny_checkpoint import write_checkpoint
from tests.verifier_service.in_process_verifier import InProcessVerifier, in_process_verifier
from tests.verifier_service.scripted_drafter import ScriptedDrafter


@pytest.fixture(scope="session", autouse=True)
def what_was_there_before() -> None:
    """Each verifier ends with a garbage collection, to find exceptions nobody saw; torch's own objects are left out."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target."""
    return write_checkpoint(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def other_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft model that agrees with the target by chance only."""
    return write_checkpoint(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture
async def verifier(checkpoint: Path) -> AsyncIterator[InProcessVerifier]:
    async with in_process_verifier(checkpoint) as made:
        yield made


@pytest.fixture(autouse=True)
def scripted_drafters_found_nothing_wrong() -> Iterator[None]:
    ScriptedDrafter.failed.clear()
    yield
    assert not ScriptedDrafter.failed
