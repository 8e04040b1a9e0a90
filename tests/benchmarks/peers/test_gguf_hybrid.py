"""A hybrid in llama.cpp's format has llama.cpp's tensors, with the values that it computes with."""

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from tests.harness.checkout import MODELS

gguf = pytest.importorskip("gguf")

from benchmarks.peers.runners import gguf_hybrid  # noqa: E402
from benchmarks.peers.runners.gguf_export import exported  # noqa: E402


def test_every_tensor_has_its_place_and_value(tmp_path: Path) -> None:
    reader = gguf.GGUFReader(exported(str(MODELS / "hybrid-target"), str(tmp_path)))
    found = {tensor.name: tensor for tensor in reader.tensors}
    with safe_open(MODELS / "hybrid-target" / "model.safetensors", "pt") as file:
        weights = {name: file.get_tensor(name).float().numpy() for name in file.keys()}  # noqa: SIM118
    assert len(found) == len(weights)
    net, attention = "model.layers.1.linear_attn", "model.layers.3.self_attn"
    for name, expected in {
        "blk.1.ssm_a": -np.exp(weights[f"{net}.A_log"]),
        "blk.1.ssm_dt.bias": weights[f"{net}.dt_bias"],
        "blk.1.ssm_conv1d.weight": weights[f"{net}.conv1d.weight"].squeeze(1),
        "blk.1.ssm_norm.weight": weights[f"{net}.norm.weight"],
        "blk.3.attn_q_norm.weight": 1 + weights[f"{attention}.q_norm.weight"],
        "blk.2.attn_norm.weight": 1 + weights["model.layers.2.input_layernorm.weight"],
        "blk.2.post_attention_norm.weight": 1 + weights["model.layers.2.post_attention_layernorm.weight"],
        "output_norm.weight": 1 + weights["model.norm.weight"],
    }.items():
        np.testing.assert_array_equal(found[name].data, expected.astype(np.float32), err_msg=name)
    for name, expected in {
        "blk.1.attn_qkv.weight": weights[f"{net}.in_proj_qkv.weight"],
        "blk.1.ssm_alpha.weight": weights[f"{net}.in_proj_a.weight"],
        "blk.1.ssm_beta.weight": weights[f"{net}.in_proj_b.weight"],
        "blk.1.attn_gate.weight": weights[f"{net}.in_proj_z.weight"],
        "blk.3.attn_q.weight": weights[f"{attention}.q_proj.weight"],  # queries and gates as they are
        "token_embd.weight": weights["model.embed_tokens.weight"],
    }.items():
        bits = np.ascontiguousarray(found[name].data).view(np.uint16).astype(np.uint32) << 16
        np.testing.assert_array_equal(bits.view(np.float32), expected, err_msg=name)
    assert reader.fields["qwen35.ssm.group_count"].contents() == 3
    assert reader.fields["qwen35.rope.dimension_count"].contents() == 16


def test_other_heads_of_keys_are_refused(tmp_path: Path) -> None:
    config = {
        "linear_num_value_heads": 4, "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_key_head_dim": 16,
    }  # fmt: skip
    with pytest.raises(ValueError, match="other heads"):
        gguf_hybrid.describe(gguf.GGUFWriter(str(tmp_path / "x"), gguf_hybrid.ARCHITECTURE), config)
