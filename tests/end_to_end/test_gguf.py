"""Services that serve models in GGUF files."""

from pathlib import Path
from typing import Any

import pytest

from draftwire import Client, Speculation
from draftwire_core.engine.kernels.library import available_kernels
from tests.harness.checkout import MODELS
from tests.harness.models.gguf_model import write_checkpoint_as_gguf
from tests.harness.served_checkpoint import assert_drafts_change_nothing
from tests.harness.services.services import Services
from tests.harness.waiting import PATIENCE, sometimes

pytestmark = pytest.mark.processes

PROMPT = "def read_config(path):\n"
OPTIONS: dict[str, Any] = {"max_tokens": 32, "ignore_eos": True, "seed": 3}


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
        assert_drafts_change_nothing(client, drafter, OPTIONS, [PROMPT])
        assert client.drafters.list()[0].model.dtype == "q4_0"


@needs_the_library
def test_a_tokenizer_of_a_file_is_the_checkpoints(files: dict[str, Path], services: Services) -> None:
    """A draft model of the one kind of files drafts for a target of the other, without translation."""
    check_a_draft_model_of_a_file(files, "checkpoint", services)


def check_a_draft_model_of_a_file(files: dict[str, Path], weights: str, services: Services) -> None:
    verifier = services.verifier("target", "--weights", weights, "--drafter", f"local:draft?model={files['draft']}")
    with Client(verifier.address, timeout=PATIENCE) as client:
        plain = client.generate(PROMPT, temperature=0.0, speculation=Speculation(enabled=False), **OPTIONS)

        def drafted() -> int:
            found = client.generate(PROMPT, temperature=0.0, speculation=Speculation(planning="always"), **OPTIONS)
            assert found.token_ids == plain.token_ids
            return found.speculation.accepted_tokens

        sometimes(drafted, "drafts are accepted")


@pytest.mark.slow
@needs_the_library
class TestAQuantisedTarget:
    def test_a_tokenizer_of_a_file_is_the_checkpoints(self, files: dict[str, Path], services: Services) -> None:
        check_a_draft_model_of_a_file(files, "q4_0", services)
