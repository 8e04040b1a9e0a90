"""A directory of an adapter, given as a model, says what it is and what to do with it."""

import json
from pathlib import Path

import pytest

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.checkpoint.weight_files import weight_files


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            json.dumps({"peft_type": "LORA", "base_model_name_or_path": "lab/base", "r": 8}),
            r"is an adapter of lab/base \(LORA\), not a model: merge it into its base model \(merge_and_unload of",
        ),
        (json.dumps({"peft_type": "IA3", "base_model_name_or_path": None}), r"is an adapter \(IA3\), not a model"),
        ("[1]", "is an adapter, not a model"),
        ("{", "is an adapter, not a model"),
    ],
)
def test_an_adapter_names_its_base_model(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=f"^model {tmp_path}: {words}"):
        Checkpoint.find(str(tmp_path))


def test_weights_alone_are_enough_to_tell(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ModelLoadError, match="is an adapter, not a model"):
        Checkpoint.find(str(tmp_path))


def test_a_model_beside_an_adapter_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    assert Checkpoint.find(str(tmp_path)).directory == tmp_path


def test_its_base_models_configuration_may_lie_next_to_it(tmp_path: Path) -> None:
    """As axolotl writes it."""
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": "lab/base"})
    )
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=rf"^model {tmp_path}: is an adapter of lab/base \(LORA\), not a model"):
        weight_files(Checkpoint.find(str(tmp_path)))


def test_other_directories_without_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"has params\.json but no config\.json: it is in the format of Mistral's"):
        Checkpoint.find(str(tmp_path))
    (tmp_path / "params.json").unlink()
    with pytest.raises(ModelLoadError, match=r"has no config\.json, and no \.gguf file of a model"):
        Checkpoint.find(str(tmp_path))
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelLoadError, match=r"config\.json is not a file"):
        Checkpoint.find(str(tmp_path))
