"""An EAGLE-3 drafter that several modules try, trained once."""

from pathlib import Path

import pytest

from tests.harness.engine.engines import tiny_model
from tests.harness.models.eagle_training import documents, train_eagle


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a drafter that was trained on the target's output for `SPECS`."""
    return train_eagle(tiny_model("Llama"), documents(), tmp_path_factory.mktemp("trained"))
