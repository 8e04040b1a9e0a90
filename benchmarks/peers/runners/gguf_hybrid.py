"""A Qwen3.5 with gated delta nets in llama.cpp's format: its sizes, and its tensors by name and value."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np

ARCHITECTURE = "qwen35"
NAMES = {
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta", "linear_attn.out_proj": "ssm_out", "linear_attn.norm": "ssm_norm",
    "linear_attn.conv1d": "ssm_conv1d", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
}  # fmt: skip
"""llama.cpp's names of modules that a Llama does not have, or that have another name there."""
_VECTORS = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}


def describe(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Adds the sizes of delta nets. Raises ValueError where keys and values have other heads or dimensions: llama.cpp
    has them in another order."""
    heads, dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
    if (heads, dim) != (config["linear_num_key_heads"], config["linear_key_head_dim"]):
        raise ValueError("delta nets whose keys and values have other heads are not exported")
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(dim)
    writer.add_ssm_group_count(heads)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(heads * dim)
    writer.add_full_attention_interval(config["layer_types"].index("full_attention") + 1)
    writer.add_rope_dimension_sections([11, 11, 10, 0])  # transformers' default; a text has one position for all


def vector(name: str, values: Any) -> tuple[str, Any] | None:
    """Returns the name and the float32 values of what is no matrix; None for matrices."""
    base = name.removesuffix(".weight")
    _, _, layer, part = base.split(".", 3) if base.startswith("model.layers.") else ("", "", "", base)
    if part in _VECTORS:
        return f"blk.{layer}.{_VECTORS[part]}", -np.exp(values) if part.endswith("A_log") else values
    if part == "linear_attn.conv1d":
        return f"blk.{layer}.{NAMES[part]}.weight", np.ascontiguousarray(values.squeeze(1))
    if part == "linear_attn.norm":
        return f"blk.{layer}.{NAMES[part]}.weight", values
    if "norm" in part:  # these count from one
        place = "output_norm" if part == "model.norm" else f"blk.{layer}.{NAMES.get(part, 'attn_norm')}"
        return f"{place}.weight", values + 1
    return None
