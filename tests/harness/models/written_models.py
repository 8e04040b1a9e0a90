"""Writes tiny models as GGUF files by the rules of llama.cpp's converter, which are spelt out here for a few
architectures, one of each kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from torch import Tensor, cat
from transformers import PretrainedConfig, PreTrainedModel

Rule = Callable[[Tensor, PretrainedConfig], Mapping[str, Tensor]]
"""Makes the tensors of a file, by their names in a layer; an empty name is the one that the package gguf has."""


class _Format(NamedTuple):
    name: str
    metadata: Callable[[PretrainedConfig], dict[str, Any]]
    rules: Mapping[str, Rule]


def write_model(
    path: Path,
    model: PreTrainedModel,
    *,
    quantised: bool = False,
    joined: bool = False,
    changed: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a model of one of `FORMATS`, in float32, or with matrices of Q8_0 if their rows are whole blocks.

    joined: whether a layer's queries, keys and values are one tensor. changed: values of the metadata
    """
    config, form = model.config, FORMATS[model.config.model_type]
    writer = gguf.GGUFWriter(path, form.name)
    for key, value in (_common(config) | form.metadata(config) | dict(changed or {})).items():
        _add(writer, f"{form.name}.{key}", value)
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == form.name)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    tensors: dict[str, Tensor] = {}
    for parameter, tensor in model.state_dict().items():
        if parameter == "lm_head.weight" and config.tie_word_embeddings:
            continue
        layer = re.search(r"layers\.(\d+)\.", parameter)
        rule = next((rule for pattern, rule in form.rules.items() if re.search(pattern, parameter)), _same)
        for part, values in rule(tensor, config).items():
            name = f"blk.{layer[1]}.{part}" if part and layer else names.get_name(parameter, (".weight", ".bias"))
            assert name is not None, parameter
            tensors[name] = values
    for name in [name for name in tensors if joined and ".attn_q." in name]:
        names = [name.replace(".attn_q.", f".attn_{each}.") for each in ("q", "k", "v")]
        tensors[name.replace(".attn_q.", ".attn_qkv.")] = cat([tensors.pop(each) for each in names])
    for name, values in tensors.items():
        _add_tensor(writer, name, values.float().contiguous().numpy(), quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _common(config: PretrainedConfig) -> dict[str, Any]:
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    add: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        list: writer.add_array,
    }
    add[type(value)](key, value)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, quantised: bool) -> None:
    kind = gguf.GGMLQuantizationType.F32
    if quantised and values.ndim > 1 and values.shape[-1] % 32 == 0 and "norm" not in name:
        kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)


def _same(values: Tensor, config: PretrainedConfig) -> Mapping[str, Tensor]:
    return {"": values}


def _plus_one(values: Tensor, config: PretrainedConfig) -> Mapping[str, Tensor]:
    return {"": values + 1}


def _permuted(values: Tensor, config: PretrainedConfig) -> Mapping[str, Tensor]:
    head = _head_size(config)
    heads = values.shape[0] // head
    return {"": values.reshape(heads, 2, head // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)}


def _experts(values: Tensor, config: PretrainedConfig) -> Mapping[str, Tensor]:
    gate, up = values.chunk(2, dim=1)
    return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}


def _named(name: str) -> Rule:
    return lambda values, config: {name: values}


def _tiled(values: Tensor, config: PretrainedConfig, size: int, first: int = 0) -> Tensor:
    """Value heads, which follow `first` rows, begin with the first one of each key head."""
    keys, heads = config.linear_num_key_heads, config.linear_num_value_heads
    moved = values[first:].reshape(keys, heads // keys, size, *values.shape[1:]).swapaxes(0, 1)
    return cat([values[:first], moved.reshape(values[first:].shape)])


def _qwen35_rules() -> dict[str, Rule]:
    def size(config: PretrainedConfig) -> int:
        return int(config.linear_value_head_dim)

    def keys(config: PretrainedConfig) -> int:
        return int(2 * config.linear_num_key_heads * config.linear_key_head_dim)

    return {
        r"linear_attn\.norm\.": _same,
        r"norm\.weight": _plus_one,
        r"in_proj_qkv\.": lambda values, config: {"": _tiled(values, config, size(config), keys(config))},
        r"conv1d": lambda values, config: {"": _tiled(values.squeeze(1), config, size(config), keys(config))},
        r"in_proj_z\.": lambda values, config: {"": _tiled(values, config, size(config))},
        r"in_proj_[ab]\.": lambda values, config: {"": _tiled(values, config, 1)},
        r"dt_bias": lambda values, config: {"ssm_dt.bias": _tiled(values, config, 1)},
        r"A_log": lambda values, config: {"ssm_a": _tiled(-values.exp(), config, 1)},
        r"out_proj\.": lambda values, config: {"": _tiled(values.t(), config, size(config)).t()},
    }


def _gpt_oss_rules() -> dict[str, Rule]:
    def both(values: Tensor, config: PretrainedConfig) -> Mapping[str, Tensor]:
        rows = values.transpose(1, 2)
        return {"ffn_gate_exps.weight": rows[:, ::2], "ffn_up_exps.weight": rows[:, 1::2]}

    return {
        r"gate_up_proj_bias": lambda values, config: {
            "ffn_gate_exps.bias": values[:, ::2],
            "ffn_up_exps.bias": values[:, 1::2],
        },
        r"gate_up_proj": both,
        r"down_proj_bias": _named("ffn_down_exps.bias"),
        r"down_proj": lambda values, config: {"ffn_down_exps.weight": values.transpose(1, 2)},
        r"sinks": _named("attn_sinks.weight"),
    }


def _head(config: PretrainedConfig) -> dict[str, Any]:
    return {"attention.key_length": _head_size(config), "attention.value_length": _head_size(config)}


def _head_size(config: PretrainedConfig) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _width(config: PretrainedConfig) -> dict[str, Any]:
    return {"feed_forward_length": config.intermediate_size}


def _mixture(config: PretrainedConfig) -> dict[str, Any]:
    return {
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": getattr(config, "moe_intermediate_size", config.intermediate_size),
    }


FORMATS: dict[str, _Format] = {
    "granite": _Format(
        "granite",
        lambda config: (
            _width(config)
            | {
                "rope.dimension_count": config.hidden_size // config.num_attention_heads,
                "attention.scale": config.attention_multiplier,
                "embedding_scale": config.embedding_multiplier,
                "residual_scale": config.residual_multiplier,
                "logit_scale": config.logits_scaling,
            }
        ),
        {r"\.[qk]_proj\.": _permuted},
    ),
    "gemma2": _Format(
        "gemma2",
        lambda config: (
            _width(config)
            | _head(config)
            | {
                "attn_logit_softcapping": config.attn_logit_softcapping,
                "final_logit_softcapping": config.final_logit_softcapping,
                "attention.sliding_window": config.sliding_window,
            }
        ),
        {r"norm\.weight": _plus_one},
    ),
    "phi3": _Format("phi3", lambda config: _width(config) | {"attention.sliding_window": 0}, {}),
    "qwen3_moe": _Format(
        "qwen3moe",
        lambda config: _mixture(config) | _head(config),
        {r"experts\.gate_up": _experts, r"experts\.down": _named("ffn_down_exps.weight")},
    ),
    "gpt_oss": _Format(
        "gpt-oss",
        lambda config: (
            _mixture(config)
            | _head(config)
            | {
                "attention.sliding_window": config.sliding_window,
                "rope.freq_base": config.rope_parameters["rope_theta"],
            }
        ),
        _gpt_oss_rules(),
    ),
    "qwen3_5_text": _Format(
        "qwen35",
        lambda config: (
            _width(config)
            | _head(config)
            | {
                "full_attention_interval": 2,
                "rope.dimension_count": config.head_dim // 4,
                "ssm.conv_kernel": config.linear_conv_kernel_dim,
                "ssm.state_size": config.linear_key_head_dim,
                "ssm.group_count": config.linear_num_key_heads,
                "ssm.time_step_rank": config.linear_num_value_heads,
                "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
            }
        ),
        _qwen35_rules(),
    ),
}
"""Architectures, by their names in transformers."""
