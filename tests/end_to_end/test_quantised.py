"""Services that serve quantised checkpoints."""

import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from draftwire import Client
from tests.harness.checkout import MODELS
from tests.harness.compared import EACH_WAY, Compared
from tests.harness.models.quantised_checkpoint import FORMS, write_quantised
from tests.harness.services.services import Services
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.processes


def quantised(place: Path, name: str, form: str) -> Path:
    """Writes a bundled model, quantised."""
    write_quantised(place, AutoModelForCausalLM.from_pretrained(MODELS / name), FORMS[form])
    for file in MODELS.joinpath(name).iterdir():
        if file.name.startswith(("tokenizer", "special_tokens", "generation", "chat_template")):
            shutil.copy(file, place / file.name)
    return place


def test_a_checkpoint_is_served(tmp_path: Path, services: Services) -> None:
    check_it_is_served("W4A16", "int4", tmp_path, services)


def check_it_is_served(
    form: str,
    weight_type: str,
    tmp_path: Path,
    services: Services,
) -> None:
    verifier = services.verifier(str(quantised(tmp_path / "target", "target", form)))
    drafter = services.drafter(str(quantised(tmp_path / "draft", "draft", form)))
    with Client(verifier.address, timeout=PATIENCE) as client:
        info = client.model_info()
        assert (info.dtype, info.bit_exact) == (weight_type, True)
        assert client.drafters.attach(drafter.address).model.dtype == weight_type
        Compared(verifier.address, ["def read_config(path):\n"], EACH_WAY, 32).drafting()


@pytest.mark.slow
class TestFloats:
    def test_a_checkpoint_is_served(
        self,
        tmp_path: Path,
        services: Services,
    ) -> None:
        check_it_is_served("FP8", "fp8", tmp_path, services)
