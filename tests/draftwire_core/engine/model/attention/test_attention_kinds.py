"""Kinds of attention: what transformers' forwards say, with the same bits for a row in any batch."""

import copy

import pytest
import torch

from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.attention.absolute_positions import counts_tokens
from draftwire_core.engine.model.packed_model import UnsupportedModelError
from draftwire_core.engine.model.shallow_model import first_layers, keep_first_layers
from tests.harness.engine.attention_models import ATTENTION_MODELS, attention_model
from tests.harness.engine.engines import check_against_plain, packed, random_tokens, walk

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
KINDS = pytest.mark.parametrize("kind", ATTENTION_MODELS)
CHUNKED = "chunks and scaled queries"
SHARED = ["shared keys and values", "shared keys, predicted layers"]


def check_says(kind: str, lengths: tuple[int, ...], prompts: list[int]) -> None:
    model = attention_model(kind)
    rows = walk(packed(model), [random_tokens(count, seed=count) for count in lengths], prompts, seed=1)
    assert check_against_plain(model, rows) < 1e-4


@KINDS
def test_packed_passes_say_what_plain_forwards_say(kind: str) -> None:
    check_says(kind, (15, 5), [9, 1])


def check_self_test(kind: str, dtype: torch.dtype) -> None:
    report = run_self_test(packed(attention_model(kind, dtype)))
    assert report.bit_exact
    assert report.error < report.tolerance


@pytest.mark.parametrize("kind", [CHUNKED, *SHARED, "sinks", "softcap", "partial rotary", "latent, experts"])
def test_the_self_test_finds_them_bit_exact(kind: str) -> None:
    check_self_test(kind, torch.bfloat16)


def check_batch_invariance(kind: str, dtype: torch.dtype, length: int, prompts: list[int]) -> None:
    """Rows have the same bits in prompts and trees of two texts as one by one."""
    ours = packed(attention_model(kind, dtype))
    texts = [random_tokens(length, seed=seed) for seed in range(2)]
    together = walk(ours, texts, prompts)
    alone = walk(ours, texts, [1] * 2, trees=False, together=False)
    both = together.keys() & alone.keys()
    assert len(both) > length // 2
    assert all(torch.equal(together[prefix], alone[prefix]) for prefix in both)


@pytest.mark.parametrize("kind", [CHUNKED, "keys as values", "sinks", "softcap", "latent"])
def test_a_row_has_the_same_bits_in_any_batch(kind: str) -> None:
    check_batch_invariance(kind, torch.float32, 14, [10, 3])


@pytest.mark.parametrize("field", ["attention_chunk_size", "floor_scale"])
def test_the_self_test_reaches_beyond_long_chunks(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of 8192 positions is longer than its script, which must notice attention that ignores it all the same."""
    model = attention_model(CHUNKED)
    model.config.attention_chunk_size = 8192
    for module in model.modules():
        if counts_tokens(module):
            module.floor_scale = 8192
    ours = packed(model)
    run_self_test(ours)
    assert ours.config.attention_chunk_size == 8192
    if field == "attention_chunk_size":
        monkeypatch.setattr("draftwire_core.engine.model.attention.packed_attention.chunk_of", lambda module: None)
    else:
        for module in ours.model.modules():
            module._forward_pre_hooks.clear()
    with pytest.raises(UnsupportedModelError, match="standard deviations away"):
        run_self_test(ours)


def test_chunks_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    model = attention_model(CHUNKED)
    ours = packed(model)
    monkeypatch.setattr("draftwire_core.engine.kernels.attention.fits", lambda keys, values: False)
    assert check_against_plain(model, walk(ours, [random_tokens(33, seed=1)], [15])) < 1e-4
    assert run_self_test(ours).bit_exact


@pytest.mark.parametrize("kind", SHARED)
def test_shared_keys_and_values_take_memory_once(kind: str) -> None:
    ours = packed(attention_model(kind))
    walk(ours, [random_tokens(20)], [10])
    assert ours.cache.layers == ours.layers - 2


def check_first_layers(kind: str, layers: int, length: int) -> None:
    model = attention_model(kind)
    view = packed(copy.deepcopy(model)).first_layers(layers)
    rows = walk(view, [random_tokens(length, seed=1)], [2 * length // 3])
    assert check_against_plain(first_layers(model, layers), rows) < 1e-4


@pytest.mark.parametrize(("kind", "layers"), [(SHARED[0], 5), (SHARED[1], 3)])
def test_the_first_layers_share_too(kind: str, layers: int) -> None:
    check_first_layers(kind, layers, 15)


def test_a_shallow_configuration_shares_fewer_layers() -> None:
    config = copy.deepcopy(attention_model("keys as values").config)
    config.hidden_size_per_layer_input = 0
    config.num_kv_shared_layers = 2
    keep_first_layers(config, 5)
    assert config.num_kv_shared_layers == 1
    keep_first_layers(config, 3)
    assert config.num_kv_shared_layers == 0


@pytest.mark.slow
class TestAll:
    """All kinds, in both types and in longer walks."""

    @KINDS
    def test_packed_passes_say_what_plain_forwards_say(self, kind: str) -> None:
        check_says(kind, (33, 7, 50, 20), [15, 1, 40, 5])

    @DTYPES
    @KINDS
    def test_the_self_test_finds_them_bit_exact(self, kind: str, dtype: torch.dtype) -> None:
        check_self_test(kind, dtype)

    @DTYPES
    @KINDS
    def test_a_row_has_the_same_bits_in_any_batch(self, kind: str, dtype: torch.dtype) -> None:
        check_batch_invariance(kind, dtype, 60, [45, 5])

    @pytest.mark.parametrize("layers", [3, 5])
    @pytest.mark.parametrize("kind", SHARED)
    def test_the_first_layers_share_too(self, kind: str, layers: int) -> None:
        check_first_layers(kind, layers, 30)
