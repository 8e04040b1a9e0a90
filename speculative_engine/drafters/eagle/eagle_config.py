"""The configuration of an EAGLE-3 checkpoint, in the two layouts that exist.

- The original one: architecture `LlamaForCausalLMEagle3`, with the fields of a Llama configuration at the top level.
- That of the library speculators: `speculators_model_type` "eagle3", with the decoder layers' fields in
  `transformer_layer_config`.

Fields that are not understood are refused by name, since ignoring one could change what the layers compute.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import LlamaConfig, PretrainedConfig, Qwen3Config

CONFIG = "config.json"
ORIGINAL_ARCHITECTURE = "LlamaForCausalLMEagle3"
SPECULATORS_TYPE = "eagle3"
_LAYER_CONFIGS: dict[str, type[PretrainedConfig]] = {"llama": LlamaConfig, "qwen3": Qwen3Config}
_ROPE_TYPES = {"default", "linear", "llama3", "yarn"}
"""Rotary embeddings whose frequencies do not depend on the length of the context."""
_MOST_LAYERS = 16
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_OWN = {"draft_vocab_size", "target_hidden_size", "eagle_aux_hidden_state_layer_ids", *_FLAGS}
_GENERIC = {
    "_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "rope_theta",
    "rope_scaling", "has_no_defaults_at_init",
}  # fmt: skip
_SPECULATORS = {"speculators_model_type", "speculators_version", "speculators_config", "transformer_layer_config"}
_IGNORED = {"embed_requires_grad", "model_type", "tie_word_embeddings"}
"""Fields that matter for training only, or that hold for all checkpoints."""
_EAGLE_CONFIG: dict[str, object] = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}
"""Fields of `eagle_config` with the only value that the layers here compute."""


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """What the tensors of an EAGLE-3 checkpoint compute."""

    layers: PretrainedConfig
    """The decoder layers; its vocabulary is the target's."""
    draft_vocab_size: int
    """Number of tokens that the output head knows."""
    target_hidden_size: int
    aux_layers: tuple[int, ...] | None
    """Indices of the target's layers whose inputs are read; None for the usual ones."""
    norm_before_residual: bool = False
    """Whether the first layer's residual is the normalised feature."""
    norm_before_fc: bool = False
    """Whether a norm over all states that are read precedes the linear map."""
    fc_norm: bool = False
    """Whether each state that is read has a norm of its own before the linear map."""
    norm_output: bool = False
    """Whether the hidden state that is fed back is the normalised one."""
    target_architectures: tuple[str, ...] = ()
    """Architectures of the target it was trained for; empty if unknown."""


def read_config(directory: Path) -> EagleConfig:
    """Reads the configuration of a checkpoint. Raises ValueError, which names the field, and OSError."""
    try:
        fields = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{CONFIG} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{CONFIG} is not an object")
    try:
        if "speculators_model_type" in fields:
            return _speculators(fields)
        return _original(fields)
    except ValueError as error:
        raise ValueError(f"{CONFIG}: {error}") from error


def usual_layers(layers: int) -> tuple[int, ...]:
    """Returns the layers whose inputs EAGLE-3 reads by default in a target with this many layers."""
    return 2, layers // 2, layers - 3


def _original(fields: dict[str, Any]) -> EagleConfig:
    names = fields.get("architectures")
    if not isinstance(names, list) or ORIGINAL_ARCHITECTURE not in names:
        raise ValueError(
            f"architectures must hold {ORIGINAL_ARCHITECTURE}, or speculators_model_type be {SPECULATORS_TYPE!r}, got "
            f"architectures {names!r}"
        )
    layers = _layers(fields, "", own=_OWN | {"eagle_config"})
    aux = _aux_layers(fields, "eagle_aux_hidden_state_layer_ids")
    eagle = fields.get("eagle_config") or {}
    _known(eagle, {*_EAGLE_CONFIG, "eagle_aux_hidden_state_layer_ids"}, "eagle_config.")
    for name, only in _EAGLE_CONFIG.items():
        if eagle.get(name, only) != only:
            raise ValueError(f"eagle_config.{name} must be {only}, got {eagle[name]!r}")
    after = _aux_layers(eagle, "eagle_aux_hidden_state_layer_ids", "eagle_config.")
    if aux is None and after is not None:
        aux = tuple(layer + 1 for layer in after)  # here ids are of the layers whose outputs are read
    return _config(fields, layers, aux, ())


def _speculators(fields: dict[str, Any]) -> EagleConfig:
    kind = fields["speculators_model_type"]
    if kind != SPECULATORS_TYPE:
        raise ValueError(f"speculators_model_type must be {SPECULATORS_TYPE!r}, got {kind!r}")
    given = fields.get("transformer_layer_config")
    if not isinstance(given, dict):
        raise ValueError(f"transformer_layer_config must be an object, got {given!r}")
    generic = set(PretrainedConfig().to_dict())
    _known(fields, _OWN | _GENERIC | _SPECULATORS | _IGNORED | generic, "")
    layers = _layers(given, "transformer_layer_config.")
    algorithm = _object(fields, "speculators_config")
    if algorithm.get("algorithm", SPECULATORS_TYPE) != SPECULATORS_TYPE:
        raise ValueError(
            f"speculators_config.algorithm must be {SPECULATORS_TYPE!r}, got {algorithm.get('algorithm')!r}"
        )
    verifier = _object(algorithm, "verifier", "speculators_config.")
    names = verifier.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"speculators_config.verifier.architectures must be a list of names, got {names!r}")
    return _config(fields, layers, _aux_layers(fields, "eagle_aux_hidden_state_layer_ids"), tuple(names))


def _config(
    fields: Mapping[str, Any], layers: PretrainedConfig, aux: tuple[int, ...] | None, names: tuple[str, ...]
) -> EagleConfig:
    flags = {name: _value(fields, name, bool, False) for name in _FLAGS}
    if flags["norm_before_fc"] and flags["fc_norm"]:
        raise ValueError("norm_before_fc and fc_norm exclude each other")
    return EagleConfig(
        layers=layers,
        draft_vocab_size=_number(fields, "draft_vocab_size", layers.vocab_size),
        target_hidden_size=_number(fields, "target_hidden_size", layers.hidden_size),
        aux_layers=aux,
        target_architectures=names,
        **flags,
    )


def _layers(fields: Mapping[str, Any], place: str, own: Collection[str] = ()) -> PretrainedConfig:
    """Returns the decoder layers' configuration. own: further fields that may stand beside it."""
    kind = fields.get("model_type", "llama")
    make = _LAYER_CONFIGS.get(kind)
    if make is None:
        raise ValueError(f"{place}model_type must be one of {', '.join(sorted(_LAYER_CONFIGS))}, got {kind!r}")
    _known(fields, {*make().to_dict(), *PretrainedConfig().to_dict(), *_GENERIC, *own}, place)
    try:
        layers = make(**{name: value for name, value in fields.items() if name not in own})
    except Exception as error:  # raised by transformers for values of any field, by several libraries
        reason = " ".join(str(error).split())
        raise ValueError(f"{place or 'the decoder layers'} cannot be configured: {reason}") from error
    layers.tie_word_embeddings = False
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"):
        _number({name: getattr(layers, name)}, name, None, place)
    if _number({"": layers.num_hidden_layers}, "", None, f"{place}num_hidden_layers") > _MOST_LAYERS:
        raise ValueError(f"{place}num_hidden_layers must be from 1 to {_MOST_LAYERS}, got {layers.num_hidden_layers}")
    if layers.num_attention_heads % layers.num_key_value_heads:
        raise ValueError(f"{place}num_key_value_heads must divide num_attention_heads")
    rope = layers.rope_parameters.get("rope_type", "default")
    if rope not in _ROPE_TYPES:
        raise ValueError(f"{place}rope_scaling: type must be one of {', '.join(sorted(_ROPE_TYPES))}, got {rope!r}")
    return layers


def _aux_layers(fields: Mapping[str, Any], name: str, place: str = "") -> tuple[int, ...] | None:
    ids = fields.get(name)
    if ids is None:
        return None
    if not isinstance(ids, list) or not ids or not all(type(layer) is int and layer >= 0 for layer in ids):
        raise ValueError(f"{place}{name} must be a list of layers' indices, got {ids!r}")
    return tuple(ids)


def _known(fields: Mapping[str, Any], known: Collection[str], place: str) -> None:
    for name in fields:
        if name not in known:
            raise ValueError(f"{place}{name} is not understood")


def _object(fields: Mapping[str, Any], name: str, place: str = "") -> dict[str, Any]:
    found = fields.get(name) or {}
    if not isinstance(found, dict):
        raise ValueError(f"{place}{name} must be an object, got {found!r}")
    return found


def _number(fields: Mapping[str, Any], name: str, otherwise: int | None, place: str = "") -> int:
    def positive(value: object) -> bool:
        return type(value) is int and value > 0

    return int(_value(fields, name, positive, otherwise, place))


def _value(fields: Mapping[str, Any], name: str, kind: Any, otherwise: object, place: str = "") -> Any:
    """Returns a field's value. kind: a type, or a check of values."""
    value = fields.get(name)
    if value is None:
        value = otherwise
    good: Callable[[object], bool] = (lambda given: isinstance(given, bool)) if kind is bool else kind
    if not good(value):
        what = "true or false" if kind is bool else "a positive whole number"
        raise ValueError(f"{place}{name} must be {what}, got {value!r}")
    return value
