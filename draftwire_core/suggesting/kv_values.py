"""Values that the KV cache keeps of a token, by a configuration of transformers or the header of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftwire_core.engine.checkpoint.gguf.gguf_header import GgufHeader
from draftwire_core.engine.checkpoint.gguf.gguf_metadata import GgufArray

LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", *_HEADS)
_KINDS = ("layer_types", "layers_block_type")
_ATTENDING = ("attn_layer_indices", "full_attn_idxs")
_INTERVALS = ("full_attention_interval", "attn_layer_period")
_MOST_LAYERS = 1 << 16
"""More that a file may say it has are left out."""


def number_of(fields: Mapping[str, Any], keys: Sequence[str]) -> int:
    """Returns the first of some fields that is a positive whole number; 0 if none is."""
    found = (fields.get(key) for key in keys)
    return next((each for each in found if type(each) is int and each > 0), 0)


def config_kv_values(fields: Mapping[str, Any]) -> int:
    """Returns the keys' and values' elements of a token in all layers that attend; 0 if the fields do not say them.

    Keys and values of latent attention count as the engine keeps them, which is expanded.
    """
    heads = number_of(fields, _HEADS)
    head = number_of(fields, ("head_dim",)) or number_of(fields, HIDDEN) // max(1, heads)
    layers = _attending(fields)
    if fields.get("kv_lora_rank"):
        latent = [number_of(fields, (key,)) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")]
        return len(layers) * heads * sum(latent)
    kv_heads = 1 if fields.get("multi_query") is True else number_of(fields, _KV_HEADS)
    own = 2 * kv_heads * head
    # Some models have larger heads, or fewer, in the layers that see all tokens.
    whole_heads = number_of(fields, ("num_global_key_value_heads",)) or kv_heads
    whole = 2 * whole_heads * (number_of(fields, ("global_head_dim",)) or head)
    values = {layer: whole if kind == "full_attention" else own for layer, kind in layers.items()}
    # Configurations that transformers has saved say it of each such layer.
    changed = fields.get("per_layer_config")
    for layer in values:
        given = changed.get(str(layer)) if isinstance(changed, dict) else None
        if isinstance(given, dict):
            dim = number_of(given, ("head_dim",)) or head
            values[layer] = 2 * (number_of(given, ("num_key_value_heads",)) or kv_heads) * dim
    return sum(values.values())


def _attending(fields: Mapping[str, Any]) -> dict[int, str]:
    """Returns the kinds of the layers that keep keys and values of their own, by their numbers."""
    count, pattern = number_of(fields, LAYERS), fields.get("hybrid_override_pattern")
    kinds = next((fields[key] for key in _KINDS if isinstance(fields.get(key), list)), None)
    linear = fields.get("linear_attn_config")
    places = [linear.get("full_attn_layers")] if isinstance(linear, dict) else [fields.get(key) for key in _ATTENDING]
    listed = next((each for each in places if isinstance(each, list)), None)
    if kinds is not None:
        found = {at: str(kind) for at, kind in enumerate(kinds) if "attention" in str(kind)}
        found = {at: kind for at, kind in found.items() if "linear" not in kind}
    elif isinstance(pattern, str):  # of Nemotron-H, with a character for each layer
        found = {at: "" for at, kind in enumerate(pattern) if kind == "*"}
    else:
        attending = count // (number_of(fields, _INTERVALS) or 1) if listed is None else len(listed)
        found = dict.fromkeys(range(min(attending, _MOST_LAYERS)), "")
    shared = number_of(fields, ("num_kv_shared_layers",))  # the last ones, which use those of earlier layers
    return {at: kind for at, kind in found.items() if not shared or at < count - shared}


def gguf_kv_values(header: GgufHeader) -> int:
    """Returns the same for a GGUF file. Must be called while the file is mapped."""
    metadata = header.metadata
    name = metadata.text("general.architecture")

    def numbers(key: str) -> list[int]:
        """A number, or one for each layer; none if it is missing."""
        value = metadata.get(f"{name}.{key}")
        if isinstance(value, GgufArray):
            return [] if value.strings else [int(each) for each in header.numbers(f"{name}.{key}")]
        return [value] if type(value) is int else []

    def number(key: str, default: int = 0) -> int:
        return max(numbers(key), default=default)

    layers, heads = number("block_count") - number("nextn_predict_layers"), number("attention.head_count")
    layers -= number("attention.shared_kv_layers")  # which use those of earlier layers
    if number("attention.key_length_mla"):
        return layers * heads * (number("attention.key_length_mla") + number("attention.value_length_mla"))
    key = number("attention.key_length", number("embedding_length") // max(1, heads))
    each = key + number("attention.value_length", key)
    by_layer = numbers("attention.head_count_kv")
    slides, narrow = numbers("attention.sliding_window_pattern"), number("attention.key_length_swa")
    if narrow and len(slides) > 1:  # Gemma 4, with smaller heads in the layers that see a window
        narrow += number("attention.value_length_swa", narrow)
        sizes = [narrow if slide else each for slide in slides[: max(0, layers)]]
        heads_of = by_layer if len(by_layer) > 1 else (by_layer or [heads]) * len(sizes)
        return sum(of * size for of, size in zip(heads_of, sizes, strict=False))
    if len(by_layer) > 1:  # 0 in layers that do not attend
        return sum(by_layer[:layers]) * each
    return layers // number("full_attention_interval", 1) * (by_layer or [heads])[0] * each
