"""A target and a draft of a few thousand weights."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.harness.models.tiny_checkpoint import write_checkpoint


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft that agrees with the target by chance only."""
    return write_checkpoint(tmp_path_factory.mktemp("draft"), seed=1)
