"""Models with rotary factors for short and for long sequences have one set of them for the whole context."""

import copy

import pytest
import torch
from transformers import LlamaConfig, MambaConfig, Qwen3Config

from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.described_model import context_of
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from tests.harness.engine.attention_models import LONG_MODELS, attention_model
from tests.harness.engine.engines import check_against_plain, random_tokens, tiny_model, walk

ORIGINAL, DECLARED = 32, 2048
KINDS = pytest.mark.parametrize("kind", LONG_MODELS)


def packed(kind: str, context_length: int | None = None, dtype: torch.dtype = torch.float32) -> PackedModel:
    return PackedModel(attention_model(kind, dtype), 400, context_length=context_length)


@KINDS
def test_up_to_the_original_context_they_are_the_short_ones(kind: str) -> None:
    ours = packed(kind)
    assert ours.context_length == ORIGINAL
    assert ours.rotary_factors == "short"
    rows = walk(ours, [random_tokens(ORIGINAL, seed=1), random_tokens(20, seed=2)], [10, 1])
    assert check_against_plain(attention_model(kind), rows) < 1e-4


@KINDS
def test_beyond_it_they_are_the_long_ones_from_the_first_position_on(kind: str) -> None:
    ours = packed(kind, DECLARED)
    assert ours.context_length == DECLARED
    assert ours.rotary_factors == "long"
    rows = walk(ours, [random_tokens(50, seed=1)], [40])
    far = {prefix: row for prefix, row in rows.items() if len(prefix) > ORIGINAL}
    assert check_against_plain(attention_model(kind), far) < 1e-4


@pytest.mark.parametrize(("kind", "context_length"), [("Phi 4 mini", None), ("MiniCPM 3", DECLARED)])
def test_the_self_test_finds_them_bit_exact(kind: str, context_length: int | None) -> None:
    assert run_self_test(packed(kind, context_length, torch.bfloat16)).bit_exact


def test_a_longer_neighbour_changes_nothing() -> None:
    ours = packed("Phi 3", DECLARED)
    texts = [random_tokens(20, seed=1), random_tokens(90, seed=2)]
    together, alone = walk(ours, texts, [10, 80]), walk(ours, texts[:1], [10])
    both = together.keys() & alone.keys()
    assert len(both) > 10
    assert all(torch.equal(together[prefix], alone[prefix]) for prefix in both)


def test_models_with_other_factors_have_other_fingerprints() -> None:
    assert packed("Phi 3").fingerprint == packed("Phi 3", ORIGINAL).fingerprint
    assert packed("Phi 3").fingerprint != packed("Phi 3", DECLARED).fingerprint


def test_other_models_have_their_declared_context_or_less() -> None:
    model = tiny_model("Llama")
    whole = PackedModel(copy.deepcopy(model), 400)
    assert whole.context_length == DECLARED
    assert whole.rotary_factors is None
    less = PackedModel(copy.deepcopy(model), 400, context_length=100)
    assert less.context_length == 100
    assert less.fingerprint == whole.fingerprint
    with pytest.raises(ModelLoadError, match="--context-length 2049 is longer than the model's 2048 tokens"):
        PackedModel(model, 400, context_length=2049)


def test_what_yarn_stretches_to_may_be_asked_for() -> None:
    """As the model card of Qwen 3 describes it."""
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768}
    config = Qwen3Config(max_position_embeddings=40960, rope_parameters=yarn)
    assert context_of(config, None) == 40960
    assert context_of(config, 131072) == 131072
    with pytest.raises(ModelLoadError, match="--context-length 131073 is longer than the model's 131072 tokens"):
        context_of(config, 131073)


def test_what_linear_scaling_stretches_to_may_be_asked_for() -> None:
    """As in the configuration of Vicuna 1.5 16k."""
    config = LlamaConfig(max_position_embeddings=4096, rope_scaling={"type": "linear", "factor": 4.0})
    assert (context_of(config, None), context_of(config, 16384)) == (4096, 16384)
    with pytest.raises(ModelLoadError, match="--context-length 16385 is longer than the model's 16384 tokens"):
        context_of(config, 16385)


def test_models_that_declare_none_have_any() -> None:
    assert context_of(MambaConfig(), None) == 2048
    assert context_of(MambaConfig(), 16384) == 16384


@pytest.mark.slow
class TestAll:
    """All kinds of factors in both types."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
    @pytest.mark.parametrize("context_length", [None, DECLARED])
    @KINDS
    def test_the_self_test_finds_them_bit_exact(
        self, kind: str, context_length: int | None, dtype: torch.dtype
    ) -> None:
        assert run_self_test(packed(kind, context_length, dtype)).bit_exact
