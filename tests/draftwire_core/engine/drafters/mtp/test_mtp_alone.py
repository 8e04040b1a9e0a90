"""A multi-token prediction layer without its target computes what it does beside it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.drafters.mtp.mtp import MtpOptions, mtp_drafter
from draftwire_core.engine.drafters.mtp.mtp_alone import load_alone
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from tests.harness.engine.feature_pass import logits_of
from tests.harness.models.eagle_checkpoints import change_tensors
from tests.harness.models.mtp_checkpoints import KINDS, LAYERS, WIDTH, write_with_mtp

TOKENS = [5, 9, 14, 23, 42, 7]


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_with_mtp(request.param, tmp_path_factory.mktemp(request.param))


def test_it_is_the_same_network(checkpoint: Path) -> None:
    found = Checkpoint.find(str(checkpoint))
    beside = mtp_drafter(MtpOptions(), PackedModel.load(found, slots=100, dtype="float32"))
    alone = load_alone(found, torch.float32)
    assert alone.target_layers == LAYERS
    states = torch.randn(len(TOKENS), WIDTH)
    with torch.no_grad():
        torch.testing.assert_close(alone.mapping(states), beside.tap.mapping(states), rtol=1e-5, atol=1e-5)
    packed = PackedModel(alone.model, 100, row_exact=False)
    torch.testing.assert_close(
        logits_of(packed, TOKENS, states), logits_of(beside.model, TOKENS, states), rtol=1e-5, atol=1e-5
    )


def test_a_checkpoint_that_lacks_a_tensor_is_refused_by_its_name(tmp_path: Path) -> None:
    directory = change_tensors(write_with_mtp("glm", tmp_path), lm_head__weight=None)
    with pytest.raises(ModelLoadError, match=r"tensor lm_head\.weight is missing"):
        load_alone(Checkpoint.find(str(directory)), torch.float32)


def test_a_multimodal_target_whose_head_is_its_embedding(tmp_path: Path) -> None:
    """transformers writes that the two are tied next to the text part's fields, and no head."""
    directory = write_with_mtp("qwen", tmp_path)
    text = json.loads((directory / "config.json").read_text())
    assert not text["tie_word_embeddings"]
    vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16}
    fields = {"model_type": "qwen3_5", "text_config": text, "vision_config": vision, "tie_word_embeddings": True}
    (directory / "config.json").write_text(json.dumps(fields))
    tensors = load_file(directory / "model.safetensors")
    del tensors["lm_head.weight"]
    tensors = {name.replace("model.", "model.language_model."): value for name, value in tensors.items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    alone = load_alone(Checkpoint.find(str(directory)), torch.float32)
    assert torch.equal(alone.model.get_output_embeddings().weight, tensors["model.language_model.embed_tokens.weight"])
