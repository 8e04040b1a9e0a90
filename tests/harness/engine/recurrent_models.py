"""Tiny models of transformers' architectures with recurrent layers that the engine serves."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness.engine.engines import SIZES, tiny_model

_DELTA: dict[str, object] = {
    **SIZES,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 80,
}
_EXPERTS: dict[str, object] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 48,
}
_MAMBA: dict[str, object] = {
    **SIZES,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_ssm": 128,
    "mamba_d_state": 32,
    "mamba_n_groups": 2,
}
_CONVOLUTION: dict[str, object] = {**SIZES, "layer_types": ["conv", "full_attention", "conv"]}

RECURRENT_MODELS: dict[str, dict[str, object]] = {
    "Qwen3_5": _DELTA,
    "Qwen3_5Moe": {**_DELTA, **_EXPERTS},
    "Qwen3Next": {**_DELTA, **_EXPERTS},
    "OlmoHybrid": _DELTA,
    "KimiLinear": {
        **SIZES,
        **_EXPERTS,
        "num_key_value_heads": 4,
        "linear_num_heads": 4,
        "linear_head_dim": 16,
        "q_lora_rank": None,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        "n_group": 1,
        "topk_group": 1,
    },
    "Lfm2": _CONVOLUTION,
    "Lfm2Moe": {**_CONVOLUTION, **_EXPERTS, "num_dense_layers": 1},
    "Mamba2": {
        **SIZES,
        "num_heads": 8,
        "head_dim": 16,
        "state_size": 16,
        "n_groups": 2,
    },
    "Mamba": {**SIZES, "intermediate_size": 128, "state_size": 16, "time_step_rank": 8},
    "FalconMamba": {**SIZES, "intermediate_size": 128, "state_size": 16, "time_step_rank": 8},
    "Jamba": {
        **SIZES,
        "mamba_d_state": 16,
        "mamba_dt_rank": 8,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 4,
        "use_mamba_kernels": False,
    },
    "RecurrentGemma": {**SIZES, "lru_width": 64, "attention_window_size": 24, "num_hidden_layers": 4},
    "Rwkv": {**SIZES, "context_length": 2048, "attention_hidden_size": 64, "rescale_every": 2},
    "NemotronH": {
        **SIZES,
        "head_dim": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "attention", "mlp", "mamba"],
    },
    "GraniteMoeHybrid": {
        **_MAMBA,
        "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 0,
        "shared_intermediate_size": 96,
    },
    "FalconH1": _MAMBA,
    "Bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "Zamba2": {
        **SIZES,
        "mamba_d_state": 16,
        "mamba_headdim": 16,
        "n_mamba_heads": 8,
        "mamba_ngroups": 2,
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "num_mem_blocks": 1,
        "hybrid_layer_ids": [1, 3],
    },
}
"""Maps transformers' class prefix to the arguments of its configuration."""
KINDS = ("Qwen3_5", "Lfm2", "Mamba2", "Mamba", "RecurrentGemma", "Rwkv", "FalconH1")
"""A model of each kind of recurrence, and one with attention and a recurrence in the same layer."""


def recurrent_model(name: str, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: object) -> PreTrainedModel:
    """Returns a random transformers model; see `tiny_model`."""
    return tiny_model(name, dtype, seed, **{**RECURRENT_MODELS[name], **changes})


def check_idle(model: PackedModel) -> None:
    """Checks that no slot, state or stored input is in use, apart from the states that the prefix cache keeps."""
    states = model.cache.states
    assert states is not None and model.pool.states is states
    assert model.pool.used == 0
    assert states.used == (states.kept, 0)
