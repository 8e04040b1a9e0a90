"""Fused layers equal transformers' layers, and replace no others. Their bits: test_bit_equality.py."""

import copy
import dataclasses

import pytest
import torch

from speculative_engine.kernels.gemm import can_multiply
from speculative_engine.loading.self_test import UnsupportedModelError, run_self_test
from speculative_engine.model import fused_layer
from speculative_engine.model.fused_layer import FusedLayer
from speculative_engine.model.packed_model import PackedModel
from speculative_engine.model.weight_names import Weights
from tests.harness.engine.engines import check_against_plain, packed, random_tokens, tiny_model, walk

_SIZES = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32}
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "grouped heads": ("Llama", {}),
    "a width without products of ours": ("Llama", {"intermediate_size": 176}),
    "biases everywhere": ("Llama", {"attention_bias": True}),
    "long heads": ("Llama", {"head_dim": 64, "tie_word_embeddings": True}),
    "sliding window": ("Mistral", {"sliding_window": 8}),
    "biases": ("Qwen2", {}),
    "normed heads": ("Qwen3", {}),
    "norms after blocks, softcap": ("Gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 16}),
    "two kinds of angles": (
        "Gemma3",
        {
            "sliding_window": 8,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "weights that 1 is added to": ("Gemma", {}),
    "norms of all heads": ("Olmo2", {}),
    "norms of all heads, windows": ("Olmo3", {"sliding_window": 8}),
    "scaled blocks": ("Granite", {"attention_multiplier": 0.25, "residual_multiplier": 0.7}),
    "layers without positions": ("SmolLM3", {"no_rope_layer_interval": 2}),
    "positions in windows alone": (
        "Exaone4",
        {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "joined weights": ("Phi3", {}),
    "partial rotary": (
        "Phi3",
        {"head_dim": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "windows of some layers": ("Ministral", {"sliding_window": 8}),
    "biases of projections": ("SeedOss", {}),
}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
needs_library = pytest.mark.skipif(fused_layer.library() is None, reason="not built: there is no C compiler")


def fused(model: PackedModel) -> bool:
    return all(isinstance(layer, FusedLayer) for layer in model.model.model.layers)


@needs_library
@DTYPES
@pytest.mark.parametrize("case", CASES)
def test_they_are_the_librarys(case: str, dtype: torch.dtype) -> None:
    name, changes = CASES[case]
    model = tiny_model(name, dtype, **{**_SIZES, **changes})
    ours = packed(copy.deepcopy(model))
    assert fused(ours)
    rows = walk(ours, [random_tokens(40, seed=1), random_tokens(25, seed=2)], [20, 5])
    # They round less than transformers' layers do in bfloat16, which are up to 0.25 away from float32.
    assert check_against_plain(model.float(), rows) < (1e-4 if dtype == torch.float32 else 0.18)


@needs_library
@DTYPES
@pytest.mark.parametrize("case", CASES)
def test_the_self_test_compares_them_with_the_librarys(case: str, dtype: torch.dtype) -> None:
    name, changes = CASES[case]
    model = packed(tiny_model(name, dtype, **{**_SIZES, **changes}))
    assert run_self_test(model).bit_exact
    layer = model.model.model.layers[1]
    layer._parts = dataclasses.replace(layer._parts, multiplier=0.2)  # transformers' layer keeps its own value
    if layer.compiled is not None:
        layer.compiled.call.multiplier = 0.2
    with pytest.raises(UnsupportedModelError, match="cannot be served"):
        run_self_test(model)


@needs_library
@pytest.mark.parametrize("weights", ["checkpoint", "int8"])
@pytest.mark.parametrize("case", CASES)
def test_one_call_gives_the_bits_of_its_parts(case: str, weights: Weights) -> None:
    name, changes = CASES[case]
    model = tiny_model(name, torch.bfloat16, **{**_SIZES, **changes})
    ours = PackedModel(model, 400, row_exact=weights == "checkpoint", weights=weights)
    layers = ours.model.model.layers
    if layers[0].compiled is None:
        pytest.skip("this processor has no compiled products of these weights")
    texts = [random_tokens(140, seed=1), random_tokens(25, seed=2)]
    whole = walk(ours, texts, [100, 5])
    for layer in layers:
        layer.compiled = None
    in_parts = walk(ours, texts, [100, 5])
    assert whole.keys() == in_parts.keys()
    assert all(torch.equal(whole[prefix], in_parts[prefix]) for prefix in whole)


@needs_library
def test_threads_change_no_bit() -> None:
    model = packed(tiny_model("Llama", torch.bfloat16, hidden_size=128, intermediate_size=1280, head_dim=32))
    if not can_multiply(model.model.get_input_embeddings().weight):
        pytest.skip("no compiled products here: the library's are exact for a number of threads each")
    texts = [random_tokens(120, seed=1), random_tokens(25, seed=2)]
    alone = walk(model, texts, [100, 5])
    torch.set_num_threads(3)
    together = walk(model, texts, [100, 5])
    assert alone.keys() == together.keys()
    assert all(torch.equal(alone[prefix], together[prefix]) for prefix in alone)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Glm", {}),
        ("Starcoder2", {}),
        ("Gemma2", {"hidden_activation": "gelu"}),
        ("Llama", {"head_dim": 16}),
        ("Llama", {"head_dim": 544}),
        ("Llama", {"intermediate_size": 172}),
        ("Llama", {"hidden_size": 72}),
        ("Llama", {"hidden_act": "gelu"}),
    ],
)
def test_other_layers_are_left_as_they_are(name: str, changes: dict[str, object]) -> None:
    model = tiny_model(name, **{**_SIZES, **changes})
    ours = packed(model)
    assert not fused(ours)
    assert check_against_plain(model, walk(ours, [random_tokens(30)], [20])) < 1e-3


def test_without_the_library_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layer, "library", lambda: None)
    assert not fused(packed(tiny_model("Llama", **_SIZES)))


def test_all_weights_count_once() -> None:
    model = tiny_model("Llama", **_SIZES)
    weights = sum(parameter.numel() for parameter in model.parameters())
    ours = packed(model)
    assert ours.parameters == weights
    tensors = [*ours.model.buffers(), *ours.model.parameters()]
    held = {id(each) if each.is_mkldnn else each.data_ptr(): each.numel() for each in tensors}
    # The embedding is kept for lookup and, packed, for the logits; a norm's weight is shared with transformers' own.
    assert sum(held.values()) < 1.1 * weights + model.get_input_embeddings().weight.numel()
