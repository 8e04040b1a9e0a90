"""Drafters that several modules try, trained once."""

from pathlib import Path

import pytest

from tests.harness.engine.engines import tiny_model
from tests.harness.models.dflash_training import train_dflash
from tests.harness.models.eagle_training import documents, train_eagle
from tests.harness.suite.run_directory import made_once


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a drafter that was trained on the target's output for `SPECS`, and knows no other tokens."""

    def train(directory: Path) -> None:
        texts = documents()
        known = len({token for text in texts for token in text})
        train_eagle(tiny_model("Llama"), texts, directory, steps=40, ahead=2, draft_vocab=known)

    return made_once(tmp_path_factory, "trained-eagle", train)


@pytest.fixture(scope="session")
def trained_dflash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a DFlash drafter that was trained on the target's output for `SPECS`."""

    def train(directory: Path) -> None:
        train_dflash(tiny_model("Llama"), documents(), directory, steps=60)

    return made_once(tmp_path_factory, "trained-dflash", train)
