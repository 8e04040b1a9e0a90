"""The KV cache's elements of a token, over configurations of published models and the headers of GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftwire_core.suggesting.kv_values import config_kv_values
from draftwire_core.suggesting.target_facts import facts_of
from tests.harness.models.hollow_models import hollow_checkpoint, hollow_gguf

LLAMA = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
HYBRID = {"num_hidden_layers": 8, "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2}
W4A16 = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"}}}
LATENT = {
    "num_hidden_layers": 27,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        (LLAMA, 32 * 2 * 8 * 128),
        ({**LLAMA, "head_dim": 256}, 32 * 2 * 8 * 256),
        ({"n_layer": 12, "n_embd": 768, "n_head": 12}, 12 * 2 * 768),
        ({"num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71, "multi_query": True}, 32 * 2 * 64),
        (HYBRID | {"full_attention_interval": 4}, 2 * 2 * 2 * 128),
        (HYBRID | {"layer_types": ["linear_attention", "full_attention"] * 4}, 4 * 2 * 2 * 128),
        (HYBRID | {"layers_block_type": ["mamba", "attention", "conv", "mamba"]}, 2 * 2 * 128),
        (HYBRID | {"layer_types": ["sliding_attention", "full_attention"], "global_head_dim": 512}, 4 * 128 + 4 * 512),
        (
            HYBRID
            | {"layer_types": ["sliding_attention", "full_attention"], "per_layer_config": {"1": {"head_dim": 512}}},
            4 * 128 + 4 * 512,
        ),
        (HYBRID | {"layer_types": ["full_attention"] * 2, "per_layer_config": {"1": {"num_key_value_heads": 1}}}, 768),
        (HYBRID | {"layer_types": ["sliding_attention", "full_attention"] * 4, "num_kv_shared_layers": 4}, 4 * 512),
        (HYBRID | {"hybrid_override_pattern": "M-M*-ME*"}, 2 * 512),
        (HYBRID | {"attn_layer_period": 4, "attn_layer_offset": 1}, 2 * 512),
        (HYBRID | {"attn_layer_indices": [3]}, 512),
        (HYBRID | {"full_attn_idxs": [2, 5]}, 2 * 512),
        (LATENT | {"linear_attn_config": {"full_attn_layers": [4, 8, 12], "kda_layers": [1, 2]}}, 3 * 16 * 320),
        (LATENT, 27 * 16 * (128 + 64 + 128)),
        ({}, 0),
        ({"num_hidden_layers": 4, "hidden_size": "wide", "num_attention_heads": -1}, 0),
    ],
)
def test_configurations(fields: dict[str, Any], values: int) -> None:
    assert config_kv_values(fields) == values


@pytest.mark.parametrize(
    ("numbers", "values"),
    [
        ({"block_count": 32, "attention.head_count": 32, "attention.head_count_kv": 8}, 32 * 2 * 8 * 4),
        ({"block_count": 4, "attention.head_count": 2}, 4 * 2 * 2 * 64),
        (
            {"block_count": 4, "attention.head_count": 8, "attention.head_count_kv": 2, "attention.key_length": 24,
             "attention.value_length": 16, "nextn_predict_layers": 1},
            3 * 2 * (24 + 16),
        ),
        ({"block_count": 4, "attention.head_count": 8, "attention.head_count_kv": [0, 2, 0, 2]}, 4 * 2 * 16),
        ({"block_count": 8, "attention.head_count": 8, "full_attention_interval": 4}, 2 * 2 * 8 * 16),
        (
            {"block_count": 2, "attention.head_count": 16, "attention.head_count_kv": 1, "attention.key_length": 576,
             "attention.key_length_mla": 192, "attention.value_length_mla": 128},
            2 * 16 * (192 + 128),
        ),
        (
            {"block_count": 6, "attention.head_count": 8, "attention.head_count_kv": [4, 4, 2] * 2,
             "attention.key_length": 64, "attention.value_length": 64, "attention.key_length_swa": 32,
             "attention.value_length_swa": 32, "attention.sliding_window_pattern": [True, True, False] * 2,
             "attention.shared_kv_layers": 2},
            2 * (3 * 4 * 32 + 2 * 64),
        ),
        ({"block_count": 2}, 0),
    ],
)  # fmt: skip
def test_gguf_files(tmp_path: Path, numbers: dict[str, Any], values: int) -> None:
    tensors = {"token_embd.weight": (512, 128)}
    sizes = numbers | {"embedding_length": 128, "context_length": 2048}
    path = hollow_gguf(tmp_path / "m.gguf", "some", sizes, tensors, {})
    facts = facts_of(str(path))
    assert (facts.kv_values, facts.context_length, facts.value_bits) == (values, 2048, 8.5)


@pytest.mark.parametrize(
    ("fields", "bits"),
    [
        ({}, 16.0),
        ({"dtype": "bfloat16"}, 16.0),
        ({"torch_dtype": "float32"}, 32.0),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, 4.5),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, 16.0),
        ({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": W4A16}}, 4.5),
        ({"quantization_config": {"quant_method": "fp8"}}, 8.0),
        ({"quantization_config": {"quant_method": "mxfp4"}}, 4.25),
        ({"quantization_config": {"quant_method": "torchao"}}, 8.0),
    ],
)
def test_bits_of_weights(tmp_path: Path, fields: dict[str, Any], bits: float) -> None:
    facts = facts_of(str(hollow_checkpoint(tmp_path / "target", {**LLAMA, **fields}, {"lm_head.weight": 2})))
    assert facts.value_bits == bits
    assert facts.kv_values == 65536


NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}


@pytest.mark.parametrize("apart", [False, True])
def test_weights_that_become_float16(tmp_path: Path, apart: bool) -> None:
    config = LLAMA if apart else {**LLAMA, "quantization_config": NVFP4}
    place = hollow_checkpoint(tmp_path / "target", config, {"lm_head.weight": 100, "a.weight": 50, "a.weight_scale": 8})
    if apart:
        (place / "hf_quant_config.json").write_text(json.dumps({"quantization": NVFP4}))
    file = place / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"BF16", "shape": [25]', b'"U8", "shape": [50]  '))
    facts = facts_of(str(place))
    assert (facts.weight_bytes, facts.bytes_per_token, facts.value_bits) == (308, 308, 16.0)


def test_experts_of_a_pass(tmp_path: Path) -> None:
    config = {**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 4096}
    tensors = {"lm_head.weight": 100, "model.layers.0.mlp.experts.0.w1.weight": 800}
    facts = facts_of(str(hollow_checkpoint(tmp_path / "target", config, tensors)))
    assert (facts.bytes_per_token, facts.pass_bytes, facts.expert_share) == (300, 900, 0.25)
    assert facts.context_length == 4096


@pytest.mark.parametrize(
    "sizes",
    [{"num_experts": 8, "top_k_experts": 2}, {"moe_num_experts": 8, "moe_k": 2}],
    ids=["Gemma 4", "ERNIE 4.5"],
)
def test_other_names_of_the_experts_of_a_token(tmp_path: Path, sizes: dict[str, int]) -> None:
    tensors = {"lm_head.weight": 100, "model.layers.0.experts.gate_up_proj": 800}
    facts = facts_of(str(hollow_checkpoint(tmp_path / "target", {**LLAMA, **sizes}, tensors)))
    assert facts.bytes_per_token == 300


def test_embeddings_of_layers_are_not_read_as_a_whole(tmp_path: Path) -> None:
    tensors = {
        "model.language_model.embed_tokens.weight": 100,
        "model.language_model.embed_tokens_per_layer.weight": 500,
    }
    facts = facts_of(str(hollow_checkpoint(tmp_path / "target", LLAMA, tensors)))
    assert (facts.weight_bytes, facts.bytes_per_token) == (600, 100)
