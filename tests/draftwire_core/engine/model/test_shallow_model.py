"""A view of a model's first layers equals a checkpoint of those layers, and leaves the model unchanged."""

from pathlib import Path

import pytest
import torch

from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from tests.harness.engine.engines import ARCHITECTURES, error, packed, plain_logits, random_tokens, tiny_model
from tests.harness.engine.special_models import truncated
from tests.harness.models.tiny_checkpoint import write_checkpoint

TOKENS = random_tokens(30)


def logits_of(model: PackedModel, tokens: list[int], chunk: int = 11) -> torch.Tensor:
    """Returns the logits after each token, computed in chunks; leaves no slot taken."""
    slots = model.pool.take(len(tokens))
    parts = []
    for start in range(0, len(tokens), chunk):
        builder = BatchBuilder()
        rows = [
            builder.add_row(tokens[position], position, int(slots[position]), True)
            for position in range(start, min(start + chunk, len(tokens)))
        ]
        builder.add_lane(slots[:start], rows)
        parts.append(model.forward(builder.build(model.group_size, model.device)))
    model.pool.give_back(slots)
    return torch.cat(parts)


def check_view(name: str, layers: int) -> None:
    model = tiny_model(name)
    view = packed(model).first_layers(layers)
    assert error(logits_of(view, TOKENS), plain_logits(truncated(model, layers), TOKENS)) < 1e-3


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", ["GPT2", "Gemma3", "GptOss", "Llama", "SmolLM3"])
def test_it_says_what_a_model_of_these_layers_says(name: str, layers: int) -> None:
    check_view(name, layers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["Llama", "Qwen3", "GPT2"])
def test_it_shares_all_and_changes_nothing(name: str, dtype: torch.dtype) -> None:
    """With bfloat16 and heads of 64, Llama's layers are fused."""
    sizes = {} if name == "GPT2" else {"hidden_size": 128, "head_dim": 64, "num_attention_heads": 2}
    sizes |= {} if name == "GPT2" else {"num_key_value_heads": 1, "intermediate_size": 192}
    model = packed(tiny_model(name, dtype, **sizes))
    before = logits_of(model, TOKENS)
    held = model.cache.bytes
    view = model.first_layers(2)
    assert (view.cache, view.pool) == (model.cache, model.pool)
    shallow = logits_of(view, TOKENS)
    assert not torch.equal(shallow, before)
    assert torch.equal(logits_of(model, TOKENS), before)
    assert model.cache.bytes == held
    known = {id(tensor) for tensor in (*model.model.parameters(), *model.model.buffers())}
    assert {id(tensor) for tensor in (*view.model.parameters(), *view.model.buffers())} < known


def test_it_goes_on_from_what_the_whole_model_computed() -> None:
    model = packed(tiny_model("Llama"))
    view = model.first_layers(2)
    expected = logits_of(view, TOKENS)[-1]
    slots = model.pool.take(len(TOKENS))
    for start, end, runs in ((0, len(TOKENS) - 1, model), (len(TOKENS) - 1, len(TOKENS), view)):
        builder = BatchBuilder()
        rows = [builder.add_row(TOKENS[at], at, int(slots[at]), True) for at in range(start, end)]
        builder.add_lane(slots[:start], rows)
        logits = runs.forward(builder.build(model.group_size, model.device))
    assert torch.equal(logits[0], expected)


@pytest.mark.parametrize("count", [-1, 0, 3, 4])
def test_too_few_or_too_many(count: int) -> None:
    with pytest.raises(ModelLoadError, match=rf"layers: must be from 1 to 2, .* got {count}"):
        packed(tiny_model("Llama")).first_layers(count)


class TestOfACheckpoint:
    """The first layers of a checkpoint, loaded alone."""

    @pytest.mark.parametrize("row_exact", [True, False])
    def test_they_say_what_the_view_says(self, tmp_path: Path, row_exact: bool) -> None:
        checkpoint = str(write_checkpoint(tmp_path))
        whole = PackedModel.load(checkpoint, slots=100, dtype="float32", row_exact=row_exact)
        alone = PackedModel.load(checkpoint, slots=100, dtype="float32", row_exact=row_exact, layers=1)
        tokens = [token % whole.vocab_size for token in TOKENS]
        assert torch.equal(logits_of(alone, tokens), logits_of(whole.first_layers(1), tokens))
        assert alone.layers == alone.cache.layers == 1
        assert alone.fingerprint != whole.fingerprint
        assert alone.parameters < whole.parameters

    @pytest.mark.parametrize("name", ["Gemma3", "GptOss", "SmolLM3", "GPT2"])
    def test_of_models_whose_layers_differ(self, tmp_path: Path, name: str) -> None:
        """The models' configurations have lists with one entry per layer."""
        model = tiny_model(name)
        model.save_pretrained(tmp_path)
        alone = PackedModel.load(str(tmp_path), slots=100, dtype="float32", layers=2)
        assert error(logits_of(alone, TOKENS), plain_logits(truncated(model, 2), TOKENS)) < 1e-3

    @pytest.mark.parametrize("count", [0, 2, 9])
    def test_too_few_or_too_many(self, tmp_path: Path, count: int) -> None:
        with pytest.raises(ModelLoadError, match=f"layers: must be from 1 to 1, .* got {count}"):
            PackedModel.load(str(write_checkpoint(tmp_path)), slots=100, layers=count)


@pytest.mark.slow
class TestAll:
    """All architectures."""

    @pytest.mark.parametrize("name", ARCHITECTURES)
    @pytest.mark.parametrize("layers", [1, 2])
    def test_it_says_what_a_model_of_these_layers_says(self, name: str, layers: int) -> None:
        check_view(name, layers)
