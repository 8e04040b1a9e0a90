"""Writes random targets with a multi-token prediction layer, in the layouts that are published."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, Glm4MoeConfig, PretrainedConfig, Qwen3_5TextConfig
from transformers.models.auto import AutoModelForCausalLM

VOCABULARY = 120
LAYERS = 3
WIDTH = 64
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def _deepseek(layers: int) -> PretrainedConfig:
    heads = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
    experts = {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    }
    sizes = {**_SIZES, "num_key_value_heads": 4, "moe_intermediate_size": 32, "n_shared_experts": 1}
    return DeepseekV3Config(**sizes, **heads, **experts, num_hidden_layers=layers, num_nextn_predict_layers=1)


def _glm(layers: int) -> PretrainedConfig:
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
    return Glm4MoeConfig(**_SIZES, **experts, head_dim=16, num_hidden_layers=layers, num_nextn_predict_layers=1)


def _qwen(layers: int) -> PretrainedConfig:
    kinds = ["linear_attention", *["full_attention"] * (layers - 1)]
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    linear |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    return Qwen3_5TextConfig(
        **_SIZES, **linear, head_dim=16, num_hidden_layers=layers, layer_types=kinds, mtp_num_hidden_layers=1
    )


KINDS = {"deepseek": _deepseek, "glm": _glm, "qwen": _qwen}


def write_with_mtp(kind: str, directory: Path, seed: int = 0, dtype: torch.dtype = torch.float32) -> Path:
    """Writes a target with `LAYERS` layers and one more for multi-token prediction."""
    torch.manual_seed(seed)
    config = KINDS[kind](LAYERS + 1)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn_like(weight) * 0.2 + (weight.dim() == 1 and kind != "qwen"))
            if name == "lm_head.weight":
                weight.mul_(3)
    model.to(dtype).save_pretrained(directory)
    tensors = load_file(directory / "model.safetensors")
    extra = {
        "eh_proj": torch.randn(WIDTH, 2 * WIDTH) * 0.2,
        **{name: torch.randn(WIDTH) * 0.2 + (kind != "qwen") for name in ("enorm", "hnorm", "norm")},
    }
    last = f"model.layers.{LAYERS}."
    if kind == "qwen":
        names = {"eh_proj": "mtp.fc", "enorm": "mtp.pre_fc_norm_embedding", "hnorm": "mtp.pre_fc_norm_hidden"}
        names["norm"] = "mtp.norm"
        tensors = {name.replace(last, "mtp.layers.0."): value for name, value in tensors.items()}
    else:
        names = {name: f"{last}{name}" for name in ("eh_proj", "enorm", "hnorm")} | {"norm": f"{last}shared_head.norm"}
    tensors |= {f"{names[name]}.weight": value.to(dtype) for name, value in extra.items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    path = directory / "config.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    fields["num_hidden_layers"] = LAYERS
    if "layer_types" in fields:
        fields["layer_types"] = fields["layer_types"][:LAYERS]
    if "mlp_layer_types" in fields:
        fields["mlp_layer_types"] = fields["mlp_layer_types"][:LAYERS]
    path.write_text(json.dumps(fields), encoding="utf-8")
    return directory
