"""What describes a target on vLLM, whose weights this process does not load: its fingerprint, and ends of texts."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.harness.checkout import MODELS
from verifier_service.vllm.target import eos_token_ids, fingerprint_of, numerics_of


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(MODELS / "draft", tmp_path / "copied")
    return tmp_path / "copied"


def test_copies_have_the_same_one(copied: Path) -> None:
    (copied / "README.md").write_text("not a part of the model")
    assert fingerprint_of(copied, "t") == fingerprint_of(MODELS / "draft", "t")
    assert fingerprint_of(copied, "t") != fingerprint_of(copied, "another tokenizer")


def test_other_models_have_others(copied: Path) -> None:
    found = {fingerprint_of(MODELS / name, "t") for name in ("draft", "draft-early", "target")}
    assert len(found) == 3
    before = fingerprint_of(copied, "t")
    (copied / "config.json").write_text((copied / "config.json").read_text() + " ")
    assert fingerprint_of(copied, "t") != before


def test_weights_that_lie_elsewhere_count_by_the_directorys_name(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    other = copied.with_name("another commit")
    shutil.copytree(copied, other)
    elsewhere = fingerprint_of(copied, "t")
    assert elsewhere != fingerprint_of(other, "t")
    (copied / "model.safetensors").touch()
    assert elsewhere != fingerprint_of(copied, "t")


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [([2, 7], 3, [2, 7, 5]), (None, 3, [3, 5]), ([-1, 2, 10], 3, [2, 5]), (-1, 3, [5]), (None, None, [5]), (5, 3, [5])],
)
def test_ends_of_texts_are_tokens(generation: object, config: object, expected: list[int]) -> None:
    model = SimpleNamespace(
        try_get_generation_config=lambda: {"eos_token_id": generation}, hf_config=SimpleNamespace(eos_token_id=config)
    )
    assert eos_token_ids(model, 10, [5, 10]) == expected


def numerics(*, cache_dtype: str = "auto", hf_overrides: object = None) -> str:
    model = SimpleNamespace(dtype="torch.bfloat16", quantization=None, hf_overrides=hf_overrides or {})
    return numerics_of(
        SimpleNamespace(
            model_config=model,
            parallel_config=SimpleNamespace(tensor_parallel_size=2, pipeline_parallel_size=1),
            device_config=SimpleNamespace(device_type="cuda"),
            cache_config=SimpleNamespace(cache_dtype=cache_dtype),
        )
    )


def test_a_type_of_the_kv_cache_and_overrides_of_the_configuration_are_other_numerics() -> None:
    usual = "cuda, torch.bfloat16, quantization None, ranks 2x1"
    assert numerics() == usual
    assert numerics(cache_dtype="fp8") == f"{usual}, KV cache fp8"
    scaled = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    assert numerics(hf_overrides=scaled) == f"{usual}, overrides {json.dumps(scaled, sort_keys=True)}"
