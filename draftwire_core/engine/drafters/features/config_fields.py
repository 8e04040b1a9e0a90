"""Reads the fields of a drafter's config.json, each checked and named in errors.

Fields that are not supported are refused by name, since ignoring one could change what the layers compute.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from transformers import LlamaConfig, PretrainedConfig, Qwen3Config

from draftwire_core.engine.checkpoint.plain_files import json_object

CONFIG = "config.json"
GENERIC = {
    "_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "rope_theta",
    "rope_scaling", "has_no_defaults_at_init",
}  # fmt: skip
"""Fields of any configuration, which do not change what layers compute beyond what transformers reads of them."""
SPECULATORS = {
    "speculators_model_type", "speculators_version", "speculators_config", "transformer_layer_config",
    "embed_requires_grad", "model_type", "tie_word_embeddings",
}  # fmt: skip
"""Fields that all drafters in the layout of speculators have. The last three matter for training only, or hold for all
checkpoints."""
_LAYER_CONFIGS: dict[str, type[PretrainedConfig]] = {"llama": LlamaConfig, "qwen3": Qwen3Config}
_ROPE_TYPES = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings whose frequencies do not depend on the length of the context."""
_NEUTRAL: dict[str, object] = {
    "attention_bias": False, "mlp_bias": False, "output_router_logits": False, "pretraining_tp": 1, "qkv_bias": False,
    "rope_interleave": False, "use_mrope": False, "use_sliding_window": False,
}  # fmt: skip
"""Fields of other kinds of layers, which trainers copy from a target's configuration, with the value that says nothing
of layers without what they are about."""
_OF_WINDOWS = ("max_window_layers", "sliding_window")
"""Fields that matter only with `use_sliding_window`, where a configuration has that."""
_MOST_LAYERS = 16
MOST_GUESSES = 128
"""Most tokens that a network guesses at once."""
ConfigT = TypeVar("ConfigT")


def read_config_of(directory: Path, read: Callable[[dict[str, Any]], ConfigT]) -> ConfigT:
    """Returns the configuration of a checkpoint. read: makes it of the fields. Raises ValueError, which names the file
    and the field, and OSError."""
    fields = json_object(directory / CONFIG)
    try:
        return read(fields)
    except ValueError as error:
        raise ValueError(f"{CONFIG}: {error}") from error


def check_architecture(fields: Mapping[str, Any], architecture: str, kind: str) -> None:
    """Raises ValueError unless a configuration in the original layout is of an architecture. kind: its name in the
    layout of speculators."""
    names = fields.get("architectures")
    if not isinstance(names, list) or architecture not in names:
        raise ValueError(
            f"architectures must hold {architecture}, or speculators_model_type be {kind!r}, got architectures "
            f"{names!r}"
        )


def speculators_layers(
    fields: Mapping[str, Any], kinds: Sequence[str], own: Collection[str], otherwise: str = "llama"
) -> PretrainedConfig:
    """Returns the decoder layers of a configuration in the layout of speculators. kinds: allowed ones. own: fields of
    these kinds. otherwise: model_type if there is none. Raises ValueError."""
    kind = fields["speculators_model_type"]
    if kind not in kinds:
        raise ValueError(f"speculators_model_type must be {' or '.join(map(repr, kinds))}, got {kind!r}")
    given = fields.get("transformer_layer_config")
    if not isinstance(given, dict):
        raise ValueError(f"transformer_layer_config must be an object, got {given!r}")
    check_known(fields, {*own, *GENERIC, *SPECULATORS, *PretrainedConfig().to_dict()}, "")
    return decoder_layers(given, "transformer_layer_config.", kind=otherwise)


def decoder_layers(
    fields: Mapping[str, Any], place: str, *, own: Collection[str] = (), kind: str = "llama"
) -> PretrainedConfig:
    """Returns the decoder layers' configuration. own: further fields that may stand next to it. kind: model_type where
    there is none. Raises ValueError."""
    kind = fields.get("model_type", kind)
    make = _LAYER_CONFIGS.get(kind)
    if make is None:
        raise ValueError(f"{place}model_type must be one of {', '.join(sorted(_LAYER_CONFIGS))}, got {kind!r}")
    known = {*make().to_dict(), *PretrainedConfig().to_dict(), *GENERIC, *own}
    fields = {name: value for name, value in fields.items() if name in known or not _is_neutral(name, fields, place)}
    check_known(fields, known, place)
    try:
        layers = make(**{name: value for name, value in fields.items() if name in known and name not in own})
    except Exception as error:  # raised by transformers for values of any field, by several libraries
        reason = " ".join(str(error).split())
        raise ValueError(f"{place or 'the decoder layers'} cannot be configured: {reason}") from error
    layers.tie_word_embeddings = False
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"):
        number_of({name: getattr(layers, name)}, name, None, place)
    if number_of({"": layers.num_hidden_layers}, "", None, f"{place}num_hidden_layers") > _MOST_LAYERS:
        raise ValueError(f"{place}num_hidden_layers must be from 1 to {_MOST_LAYERS}, got {layers.num_hidden_layers}")
    if layers.num_attention_heads % layers.num_key_value_heads:
        raise ValueError(f"{place}num_key_value_heads must divide num_attention_heads")
    rope = layers.rope_parameters.get("rope_type", "default")
    if rope not in _ROPE_TYPES:
        raise ValueError(f"{place}rope_scaling: type must be one of {', '.join(sorted(_ROPE_TYPES))}, got {rope!r}")
    return layers


def _is_neutral(name: str, fields: Mapping[str, Any], place: str) -> bool:
    """Whether a field that layers of this kind do not have has the value that changes nothing. Raises ValueError, which
    says which that is."""
    value = fields[name]
    if value is None or (name in _OF_WINDOWS and fields.get("use_sliding_window") is False):
        return True
    if name == "layer_types" and isinstance(value, list):
        return set(value) <= {"full_attention"}
    if name not in _NEUTRAL:
        return False
    if value != _NEUTRAL[name]:
        raise ValueError(f"{place}{name} must be {_NEUTRAL[name]} for such layers, got {value!r}")
    return True


def made_for(fields: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    """Returns the architectures of the targets that a checkpoint in the layout of speculators was trained for; empty if
    unknown. kind: its algorithm. Raises ValueError."""
    algorithm = object_of(fields, "speculators_config")
    if algorithm.get("algorithm", kind) != kind:
        raise ValueError(f"speculators_config.algorithm must be {kind!r}, got {algorithm.get('algorithm')!r}")
    verifier = object_of(algorithm, "verifier", "speculators_config.")
    names = verifier.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"speculators_config.verifier.architectures must be a list of names, got {names!r}")
    return tuple(names)


def speculative_tokens(fields: Mapping[str, Any]) -> int:
    """Returns how many tokens a checkpoint in the layout of speculators proposes at once. Raises ValueError."""
    methods = object_of(fields, "speculators_config").get("proposal_methods")
    place = "speculators_config.proposal_methods"
    if not isinstance(methods, list) or not methods or not isinstance(methods[0], dict):
        raise ValueError(f"{place} must be a list of objects, got {methods!r}")
    return number_of(methods[0], "speculative_tokens", None, f"{place}[0].", most=MOST_GUESSES)


def token_of(fields: Mapping[str, Any], name: str, vocabulary: int) -> int:
    """Returns a token's id. Raises ValueError."""
    token = fields.get(name)
    if type(token) is not int or not 0 <= token < vocabulary:
        raise ValueError(f"{name} must be a token's id below {vocabulary}, got {token!r}")
    return token


def layer_ids(fields: Mapping[str, Any], name: str, place: str = "") -> tuple[int, ...] | None:
    """Returns a list of layers' indices; None if the field is missing. Raises ValueError."""
    ids = fields.get(name)
    if ids is None:
        return None
    if not isinstance(ids, list) or not ids or not all(type(layer) is int and layer >= 0 for layer in ids):
        raise ValueError(f"{place}{name} must be a list of layers' indices, got {ids!r}")
    return tuple(ids)


def check_known(fields: Mapping[str, Any], known: Collection[str], place: str) -> None:
    """Raises ValueError for a field that is not among the known ones, unless it is null."""
    for name, value in fields.items():
        if name not in known and value is not None:
            raise ValueError(f"{place}{name} is not supported")


def object_of(fields: Mapping[str, Any], name: str, place: str = "") -> dict[str, Any]:
    """Returns an object; an empty one if the field is missing. Raises ValueError."""
    found = fields.get(name) or {}
    if not isinstance(found, dict):
        raise ValueError(f"{place}{name} must be an object, got {found!r}")
    return found


def number_of(
    fields: Mapping[str, Any], name: str, otherwise: int | None, place: str = "", most: int | None = None
) -> int:
    """Returns a positive whole number, `otherwise` if the field is missing. most: largest one that is allowed. Raises
    ValueError."""
    value = fields.get(name)
    if value is None:
        value = otherwise
    if type(value) is not int or value <= 0:
        raise ValueError(f"{place}{name} must be a positive whole number, got {value!r}")
    if most is not None and value > most:
        raise ValueError(f"{place}{name} must be at most {most}, got {value}")
    return value


def flag_of(fields: Mapping[str, Any], name: str) -> bool:
    """Returns a truth value, false if the field is missing. Raises ValueError."""
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")
    return value
