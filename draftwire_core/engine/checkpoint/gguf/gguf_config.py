"""The configuration, as of transformers, of the model in a GGUF file."""

from __future__ import annotations

import math
from typing import Any

import torch
from gguf.constants import TokenType
from transformers import AutoConfig, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from draftwire_core.engine.checkpoint.gguf.gguf_architecture import ROPE_FACTORS, GgufDimensions
from draftwire_core.engine.checkpoint.gguf.gguf_header import GgufHeader
from draftwire_core.engine.checkpoint.gguf.gguf_metadata import GgufMetadata
from draftwire_core.engine.checkpoint.gguf.gguf_tensor import GgufTensor

_TOKENIZER = "tokenizer.ggml"
_ENDS = frozenset(["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>", "<end_of_turn>"])
"""Special tokens that end a text even if no key says so, as in llama.cpp: those of the supported architectures."""
_LAYERS_OF_27B = 62
"""Layers of Gemma 3's largest model."""
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Scaling of the rotary embedding in the models since Llama 3.1, but for the factor."""
_BASE = 10000.0
"""Base of the rotary embedding in files that give none, as in llama.cpp."""


def read_config(
    header: GgufHeader, dimensions: GgufDimensions, *, vocabulary: int, tied: bool, rope_factors: GgufTensor | None
) -> PretrainedConfig:
    """The configuration.

    transformers reads GGUF files itself, but drops scaled rotary embeddings, lengths of heads and ends of texts.

    vocabulary: rows of the embedding. tied: whether the embedding is also the projection to the logits. rope_factors:
    the factors that divide the frequencies of the rotary embedding, if the file has them. Raises ModelLoadError, which
    names the file and the key or tensor, for values that are missing or not supported.
    """
    metadata, name = header.metadata, dimensions.architecture.name
    epsilon = f"{name}.attention.layer_norm_rms_epsilon"
    if metadata.number(epsilon) <= 0:
        raise metadata.refusal(epsilon, f"is {metadata[epsilon]}; must be positive")
    values: dict[str, Any] = {
        "architectures": [dimensions.architecture.model_class],
        "vocab_size": vocabulary,
        "hidden_size": dimensions.hidden,
        "intermediate_size": dimensions.intermediate,
        "num_hidden_layers": dimensions.layers,
        "num_attention_heads": dimensions.heads,
        "num_key_value_heads": dimensions.kv_heads,
        "head_dim": dimensions.head,
        "max_position_embeddings": metadata.size(f"{name}.context_length"),
        "rms_norm_eps": metadata.number(epsilon),
        "rope_parameters": _rope(metadata, name, rope_factors),
        "tie_word_embeddings": tied,
        "bos_token_id": _token(metadata, "bos_token_id", vocabulary),
        "pad_token_id": _token(metadata, "padding_token_id", vocabulary),
        "eos_token_id": _ends(header, vocabulary),
    }
    if not dimensions.architecture.always_biased:
        values["attention_bias"] = dimensions.attention_bias
    if name == "llama":
        values["mlp_bias"] = dimensions.mlp_bias
    if dimensions.architecture.sliding_pattern:
        values |= _sliding(metadata, dimensions, values["rope_parameters"])
    try:
        config = AutoConfig.for_model(dimensions.architecture.model_type, **values)
    except Exception as error:  # the library checks values with errors of several kinds
        raise metadata.refusal(f"{name}.*", f"no configuration: {error}") from error
    if rope_factors is not None:
        _check_factors(config, metadata, rope_factors)
    return config


def _sliding(metadata: GgufMetadata, dimensions: GgufDimensions, rope: dict[str, Any]) -> dict[str, Any]:
    """Fields of models some of whose layers have a sliding window. rope: of the other layers."""
    name, pattern = dimensions.architecture.name, dimensions.architecture.sliding_pattern
    # As in llama.cpp: 27B is the only size whose queries are scaled by another number than the length of a head.
    scalar = dimensions.hidden // dimensions.heads if dimensions.layers == _LAYERS_OF_27B else dimensions.head
    if rope["rope_type"] == "llama3":
        raise metadata.tensor_refusal(ROPE_FACTORS, f"is not supported for architecture {name}")
    base = metadata.number(f"{name}.rope.freq_base_swa", _BASE)
    if base <= 0:
        raise metadata.refusal(f"{name}.rope.freq_base_swa", f"is {base}; must be positive")
    return {
        "sliding_window": metadata.size(f"{name}.attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if (layer + 1) % pattern else "full_attention" for layer in range(dimensions.layers)
        ],
        "query_pre_attn_scalar": scalar,
        "rope_parameters": {
            "full_attention": rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": base},
        },
    }


def _rope(metadata: GgufMetadata, name: str, rope_factors: GgufTensor | None) -> dict[str, Any]:
    """The parameters of the rotary embedding."""
    base, scaling = f"{name}.rope.freq_base", f"{name}.rope.scaling"
    theta = metadata.number(base, _BASE)
    if theta <= 0:
        raise metadata.refusal(base, f"is {theta}; must be positive")
    for key, usual in (
        (f"{scaling}.attn_factor", 1.0),
        (f"{scaling}.yarn_ext_factor", 1.0),
        (f"{scaling}.yarn_log_multiplier", 0.0),
    ):
        if metadata.number(key, usual) != usual:
            raise metadata.refusal(key, f"is {metadata[key]}; only {usual} is supported")
    # Without a type, a factor scales linearly. The key of old files is the second one.
    kind = metadata.text(f"{scaling}.type") if f"{scaling}.type" in metadata else "linear"
    factor = metadata.number(f"{scaling}.factor", metadata.number(f"{name}.rope.scale_linear", 0.0)) or 1.0
    if factor < 1:
        raise metadata.refusal(f"{scaling}.factor", f"is {factor}; must be at least 1")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if kind == "yarn":
        rope |= {"rope_type": "yarn", "factor": factor} | _yarn(metadata, scaling, factor)
    elif kind == "linear" and factor != 1:
        rope |= {"rope_type": "linear", "factor": factor}
    elif kind not in ("linear", "none"):
        raise metadata.refusal(
            f"{scaling}.type", f"{kind[:64]!r} is not supported; supported are none, linear and yarn"
        )
    if rope_factors is None:
        return rope
    if rope["rope_type"] != "default":
        raise metadata.refusal(f"{scaling}.type", f"{kind} together with the tensor {ROPE_FACTORS} is not supported")
    return rope | {"rope_type": "llama3", "factor": float(rope_factors.dequantised().max())} | _LLAMA3


def _yarn(metadata: GgufMetadata, scaling: str, factor: float) -> dict[str, Any]:
    original = metadata.size(f"{scaling}.original_context_length")
    found: dict[str, Any] = {"original_max_position_embeddings": original}
    attention = metadata.number(f"{scaling}.yarn_attn_factor", 1.0)
    if attention != 1:  # a multiple of the usual one, which is transformers' default
        found["attention_factor"] = attention * (0.1 * math.log(factor) + 1)
    for key in ("beta_fast", "beta_slow"):
        if f"{scaling}.yarn_{key}" in metadata:
            found[key] = metadata.number(f"{scaling}.yarn_{key}")
    return found


def _check_factors(config: PretrainedConfig, metadata: GgufMetadata, rope_factors: GgufTensor) -> None:
    """Raises ModelLoadError unless the configuration gives the frequencies that the file's factors give."""
    factors = rope_factors.dequantised()
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    expected = config.rope_parameters["rope_theta"] ** -steps / factors
    if not torch.allclose(frequencies, expected, rtol=1e-4, atol=0.0):
        raise metadata.tensor_refusal(ROPE_FACTORS, "has other factors than those of Llama 3.1: not supported")


def _token(metadata: GgufMetadata, key: str, vocabulary: int) -> int | None:
    """The id of a special token; None if the file has none. Raises ModelLoadError for one beyond the vocabulary."""
    key = f"{_TOKENIZER}.{key}"
    if key not in metadata:
        return None
    token = metadata.integer(key)
    if token >= vocabulary:
        raise metadata.refusal(key, f"is {token}, but the embedding has {vocabulary} rows")
    return token


def _ends(header: GgufHeader, vocabulary: int) -> int | list[int] | None:
    """The ids of the tokens that end a text: one, several, or None."""
    found = [_token(header.metadata, f"{role}_token_id", vocabulary) for role in ("eos", "eot", "eom")]
    if f"{_TOKENIZER}.tokens" in header.metadata and f"{_TOKENIZER}.token_type" in header.metadata:
        # A file may have a shorter list of types, or a longer one.
        typed = zip(header.strings(f"{_TOKENIZER}.tokens"), header.numbers(f"{_TOKENIZER}.token_type"), strict=False)
        found += [
            token for token, (text, kind) in enumerate(typed) if kind == TokenType.CONTROL and text in _ENDS
        ]  # fmt: skip
    ends = list(dict.fromkeys(token for token in found if token is not None and token < vocabulary))
    return ends if len(ends) > 1 else next(iter(ends), None)
