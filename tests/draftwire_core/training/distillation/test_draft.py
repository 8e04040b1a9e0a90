"""A trained draft as written to disk."""

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM
from transformers.integrations.mistral import tokenizer as mistral_tokenizer
from transformers.models.auto import tokenization_auto

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.training.distillation.draft import Draft
from tests.harness.models.tiny_checkpoint import write_checkpoint

MODELS = Path(__file__).resolve().parents[4] / "models"


def test_whoever_may_read_one_of_its_files_may_read_all(tmp_path: Path) -> None:
    Draft(str(MODELS / "draft")).write(tmp_path / "written")
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "written").iterdir()}
    assert "model.safetensors" in modes
    assert len(set(modes.values())) == 1, modes


@pytest.mark.parametrize(("kind", "error"), [(PreTrainedTokenizerBase, Exception), (PreTrainedModel, SafetensorError)])
def test_one_that_does_not_fit_on_the_disk_leaves_nothing(
    kind: Any, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packages tokenizers and safetensors raise errors of their own, no OSError."""
    write = kind.save_pretrained

    def save(self: object, path: Path, **options: object) -> None:
        write(self, path, **options)
        assert (path / "model.safetensors").stat().st_size
        raise error("No space left on device (os error 28)")

    draft = Draft(str(write_checkpoint(tmp_path / "draft")))
    monkeypatch.setattr(kind, "save_pretrained", save)
    with pytest.raises(OSError, match="No space left on device"):
        draft.write(tmp_path / "written")
    assert [each.name for each in tmp_path.iterdir()] == ["draft"]


NORM, UP = "model.norm.weight", "model.layers.0.mlp.up_proj.weight"
Tensors = dict[str, torch.Tensor]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda tensors: {name: each for name, each in tensors.items() if name != UP}, f"lacks the tensor {UP}"),
        (lambda tensors: {**tensors, UP + "x": tensors[UP].clone()}, f"has the tensor {UP}x, which its"),
        (lambda tensors: {**tensors, NORM: tensors[NORM][:-1].clone()}, rf"the tensor {NORM} has shape \[31\]"),
    ],
)
def test_an_incomplete_one_is_refused_as_in_serving(
    damage: Callable[[Tensors], Tensors], words: str, tmp_path: Path
) -> None:
    weights = write_checkpoint(tmp_path) / "model.safetensors"
    Draft(str(tmp_path))
    save_file(damage(load_file(weights)), weights, {"format": "pt"})
    with pytest.raises(ModelLoadError, match=f"model {tmp_path}: .*{words}"):
        Draft(str(tmp_path))


def test_one_whose_tensors_need_a_package_that_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object, **__: object) -> None:
        raise ImportError("Loading a GPTQ quantized model requires optimum\n(`pip install optimum`)")  # as transformers

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", read)
    with pytest.raises(ModelLoadError, match=r"^model .*: Loading a GPTQ quantized model requires optimum \(`pip"):
        Draft(str(write_checkpoint(tmp_path)))


def test_texts_are_split_as_its_tokenizers_file_says(tmp_path: Path) -> None:
    """Whatever the type of the model: as where the draft is served, before training and after."""
    config = Qwen2Config(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1
    )
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "draft")
    whole = json.loads((MODELS / "target" / "tokenizer.json").read_text())
    threes = {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}"}, "behavior": "Isolated", "invert": False}
    whole["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [threes, whole["pre_tokenizer"]]}
    (tmp_path / "draft" / "tokenizer.json").write_text(json.dumps(whole))
    (tmp_path / "draft" / "tokenizer_config.json").write_text("{}")
    draft = Draft(str(tmp_path / "draft"))
    draft.write(tmp_path / "written")
    served = Tokenizer.load(str(tmp_path / "draft"))
    assert served.sha256 == draft.tokenizer.sha256 == Tokenizer.load(str(tmp_path / "written")).sha256


def test_mistrals_own_file_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With mistral-common installed, transformers prefers tekken.json to tokenizer.json."""
    monkeypatch.setitem(tokenization_auto.TOKENIZER_MAPPING_NAMES, "llama", "MistralCommonBackend")
    monkeypatch.setattr(mistral_tokenizer, "is_mistral_common_available", lambda: True)
    write_checkpoint(tmp_path)
    (tmp_path / "tekken.json").write_text("{}")
    tokenizer = Draft(str(tmp_path)).tokenizer
    assert tokenizer.encode("w0") == [3]
