"""The self-test: passes models that are served correctly, refuses others with a message that gives the reason."""

import pytest
import torch

from draftwire_core.engine.device.choices import KvDtype
from draftwire_core.engine.kernels.kv_rows import elements
from draftwire_core.engine.kv import kv_slots
from draftwire_core.engine.kv.kv_slots import KvCache
from draftwire_core.engine.loading.self_test import run_self_test
from draftwire_core.engine.model.attention.packed_attention import ATTENTION_NAME
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel, UnsupportedModelError
from tests.harness.engine.engines import ARCHITECTURES, packed, random_tokens, tiny_model, walk

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def check_passes(name: str, dtype: torch.dtype) -> None:
    model = packed(tiny_model(name, dtype))
    report = run_self_test(model)
    assert report.error < report.tolerance
    assert report.bit_exact


@DTYPES
@pytest.mark.parametrize("name", ["GPT2", "GptOss"])
def test_passes_what_is_served_right(name: str, dtype: torch.dtype) -> None:
    check_passes(name, dtype)


IN_8_BITS: dict[str, tuple[str, dict[str, object]]] = {
    "fused": ("Llama", {"hidden_size": 128, "intermediate_size": 176, "head_dim": 32}),
    "normed heads": ("Qwen3", {"head_dim": 32}),
    "softcap": ("Gemma2", {"head_dim": 32}),
    "sinks": ("GptOss", {"head_dim": 32}),
    "learned positions": ("GPT2", {"n_embd": 128}),
}


def check_kv_dtype(case: str, dtype: torch.dtype, kv_dtype: KvDtype) -> None:
    """Keys and values of another type pass without more tolerance."""
    name, changes = IN_8_BITS[case]
    model = packed(tiny_model(name, dtype, **changes), kv_dtype=kv_dtype)
    report = run_self_test(model)
    assert report.error < report.tolerance
    assert report.bit_exact
    assert model.kv_dtype == model.cache.dtype == kv_dtype
    assert model.model.config._attn_implementation == ATTENTION_NAME


@pytest.mark.parametrize("case", IN_8_BITS)
def test_passes_keys_and_values_in_8_bits_without_more_tolerance(case: str) -> None:
    check_kv_dtype(case, torch.bfloat16, "q8_0")


@pytest.mark.parametrize("case", ["fused", "sinks"])
def test_passes_keys_and_values_in_float16(case: str) -> None:
    check_kv_dtype(case, torch.float32, "float16")


def test_refuses_heads_that_are_no_blocks_of_32() -> None:
    with pytest.raises(UnsupportedModelError, match="keys of layer 0 have 16 elements a head, and q8_0 needs a mult"):
        run_self_test(packed(tiny_model("Llama"), kv_dtype="q8_0"))


@DTYPES
def test_refuses_wrong_scales_of_keys_and_values(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scale of each second block of 32 is written as that of the block before it."""
    write = kv_slots.write_rows

    def wrong(rows: torch.Tensor, slots: torch.Tensor, stored: torch.Tensor) -> None:
        write(rows, slots, stored)
        scales = stored[..., elements(stored) :].unflatten(-1, (-1, 2, 2))
        scales[..., 1, :] = scales[..., 0, :]

    model = packed(tiny_model("GPT2", dtype, n_embd=256, n_layer=1), kv_dtype="q8_0")
    run_self_test(model)
    monkeypatch.setattr(kv_slots, "write_rows", wrong)
    with pytest.raises(UnsupportedModelError, match="standard deviations away"):
        run_self_test(model)


def test_leaves_everything_as_it_was() -> None:
    model = packed(tiny_model("Llama"), 400)
    text = random_tokens(20, seed=1)
    before = walk(model, [text], [10])
    taken = model.pool.take(7)
    cache = model.cache
    report = run_self_test(model)
    assert model.pool.used == 7 and model.cache is cache and isinstance(cache, KvCache)
    assert model.model.config._attn_implementation == ATTENTION_NAME
    model.pool.give_back(taken)
    after = walk(model, [text], [10])
    assert all(torch.equal(after[prefix], before[prefix]) for prefix in before)
    assert report.seconds < 5


def test_float16_is_served_and_reported() -> None:
    report = run_self_test(packed(tiny_model("Llama", torch.float16)))
    assert isinstance(report.bit_exact, bool)


_XLSTM = {"num_heads": 4, "num_blocks": 3, "chunkwise_kernel": "chunkwise--native_autograd"}
REFUSED = {
    "matrix memory": ("xLSTM", _XLSTM, "layers of an unknown kind, with a state of their own"),
    "matrix memory, no heads": ("xLSTM", {**_XLSTM, "num_attention_heads": None}, "no attention heads"),
    "lightning attention": (
        "MiniMax",
        {"layer_types": ["full_attention", "linear_attention", "full_attention"], "head_dim": 16, "block_size": 16},
        "keep no keys and values",
    ),
    "compressed attention": (
        "DeepseekV4",
        {"layer_types": ["heavily_compressed_attention"] * 3, "n_routed_experts": 4, "moe_intermediate_size": 64},
        "compressed attention",
    ),
    "keys of an indexer": (
        "DeepseekV32",
        {
            "kv_lora_rank": 32,
            "q_lora_rank": 32,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "moe_intermediate_size": 48,
            "n_group": 1,
            "topk_group": 1,
        },
        "keys that an indexer selects .DeepseekV32Indexer.",
    ),
    "positions of its own": (
        "Bart",
        {"d_model": 64, "decoder_layers": 3, "decoder_attention_heads": 4, "num_hidden_layers": 3, "is_decoder": True},
        "counts positions itself and takes no position_ids",
    ),
    "positions from 2 on": ("Roberta", {"is_decoder": True}, "its own positions do not begin at 0"),
    "convolutions beside attention": (
        "Inkling",
        {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
        "mix tokens outside of attention",
    ),
    "two attentions a layer": ("DiffLlama", {}, "attend 6 times"),
    "a bias of scores": ("Doge", {}, "a bias of its own"),
    "attention of its own": ("Bloom", {}, "no layer attends through transformers' attention interface"),
    "attention of its own, with rotary positions": ("Falcon", {}, "no layer attends through"),
}


def check_refused(kind: str, dtype: torch.dtype) -> None:
    name, changes, message = REFUSED[kind]
    library_model = tiny_model(name, dtype, **changes)
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        run_self_test(PackedModel(library_model, 400))
    assert name in str(caught.value)
    assert isinstance(caught.value, ModelLoadError)


@pytest.mark.parametrize("kind", [kind for kind in REFUSED if kind != "convolutions beside attention"])
def test_refuses_what_cannot_be_served(kind: str) -> None:
    check_refused(kind, torch.float32)


def test_refuses_a_bias_of_scores_that_rounding_could_explain() -> None:
    check_refused("a bias of scores", torch.bfloat16)


def test_refuses_dynamic_rope_beyond_its_trained_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to `max_position_embeddings` dynamic RoPE does nothing; a model that may exceed it must be refused."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    model = packed(tiny_model("Llama", rope_parameters=rope, max_position_embeddings=512))
    run_self_test(model)
    model.context_length = 2048
    with pytest.raises(UnsupportedModelError, match="a neighbour at position 2047 moves"):
        run_self_test(model)


def test_refuses_a_window_that_attention_is_not_told_of() -> None:
    model = packed(tiny_model("Mistral", sliding_window=1000))
    run_self_test(model)
    model.config.layer_types = ["sliding_attention"] * 3
    for layer in model.model.model.layers:
        layer.self_attn.sliding_window = None
        layer.self_attn.config.sliding_window = 1000
    forward = type(model.model.model.layers[0].self_attn).forward
    with pytest.MonkeyPatch.context() as patch:

        def untold(self: torch.nn.Module, *args: object, **kwargs: object) -> object:
            self.config.sliding_window = None
            try:
                return forward(self, *args, **kwargs)
            finally:
                self.config.sliding_window = 1000

        patch.setattr(type(model.model.model.layers[0].self_attn), "forward", untold)
        with pytest.raises(UnsupportedModelError, match="hides keys beyond 1000 positions"):
            run_self_test(model)


def test_refuses_positions_it_cannot_set(monkeypatch: pytest.MonkeyPatch) -> None:
    model = packed(tiny_model("GPT2"))
    forward = model.model.transformer.wpe.forward
    monkeypatch.setattr(
        model.model.transformer.wpe, "forward", lambda ids: forward(torch.arange(ids.shape[-1]).expand_as(ids))
    )
    with pytest.raises(UnsupportedModelError, match="standard deviations away"):
        run_self_test(model)


@pytest.mark.slow
class TestAll:
    """All models in both types."""

    @DTYPES
    @pytest.mark.parametrize("name", ARCHITECTURES)
    def test_passes_what_is_served_right(self, name: str, dtype: torch.dtype) -> None:
        check_passes(name, dtype)

    @pytest.mark.parametrize("kv_dtype", ["q8_0", "float16"])
    @DTYPES
    @pytest.mark.parametrize("case", IN_8_BITS)
    def test_passes_keys_and_values_of_other_types(self, case: str, dtype: torch.dtype, kv_dtype: KvDtype) -> None:
        check_kv_dtype(case, dtype, kv_dtype)

    @DTYPES
    @pytest.mark.parametrize("kind", REFUSED)
    def test_refuses_what_cannot_be_served(self, kind: str, dtype: torch.dtype) -> None:
        check_refused(kind, dtype)
