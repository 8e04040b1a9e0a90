"""Services that serve models in GGUF files."""

from pathlib import Path

import pytest

from draftwire import Client
from draftwire_core.engine.kernels.library import available_kernels
from tests.harness.checkout import MODELS
from tests.harness.compared import EACH_WAY, Compared
from tests.harness.models.gguf_model import write_checkpoint_as_gguf
from tests.harness.services.services import Services
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.processes

PROMPT = "def read_config(path):\n"
TOKENS = 32


needs_the_library = pytest.mark.skipif("baseline" not in available_kernels(), reason="there is no compiled library")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The bundled models as files, by name."""
    place = tmp_path_factory.mktemp("gguf")
    return {
        name: write_checkpoint_as_gguf(place / f"{name}.gguf", MODELS / name, kind)
        for name, kind in (("target", "Q8_0"), ("draft", "Q4_0"))
    }


def test_files_are_served(
    files: dict[str, Path],
    services: Services,
) -> None:
    verifier, drafter = services.verifier(str(files["target"])), services.drafter(str(files["draft"]))
    with Client(verifier.address, timeout=PATIENCE) as client:
        info = client.model_info()
        assert (info.model_id, info.dtype, info.bit_exact) == ("target.gguf", "q8_0", True)
        assert client.drafters.attach(drafter.address).model.dtype == "q4_0"
        Compared(verifier.address, [PROMPT], EACH_WAY, TOKENS).drafting()


@needs_the_library
def test_a_tokenizer_of_a_file_is_the_checkpoints(files: dict[str, Path], services: Services) -> None:
    """A draft model of the one kind of files drafts for a target of the other, without translation."""
    check_a_draft_model_of_a_file(files, "checkpoint", services)


def check_a_draft_model_of_a_file(files: dict[str, Path], weights: str, services: Services) -> None:
    verifier = services.verifier("target", "--weights", weights, "--drafter", f"local:draft?model={files['draft']}")
    Compared(verifier.address, [PROMPT], EACH_WAY, TOKENS).drafting()


@pytest.mark.slow
@needs_the_library
class TestAQuantisedTarget:
    def test_a_tokenizer_of_a_file_is_the_checkpoints(self, files: dict[str, Path], services: Services) -> None:
        check_a_draft_model_of_a_file(files, "q4_0", services)
