"""Models of these tests, written once."""

import pytest

from tests.harness.world.checkpoints import Checkpoints, write_checkpoints
from tests.harness.world.plain_reference import PlainReference
from tests.harness.world.request_choices import PROMPTS, SAMPLINGS, request_of


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return write_checkpoints(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def reference(checkpoints: Checkpoints) -> PlainReference:
    made = PlainReference(checkpoints.target)
    for prompt in PROMPTS:
        for sampling in SAMPLINGS:
            made.of(request_of(prompt, sampling))
    return made
