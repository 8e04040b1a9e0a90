"""The configuration of an EAGLE-3 checkpoint, in the two layouts that exist.

- The original one: architecture `LlamaForCausalLMEagle3`, with the fields of a Llama configuration at the top level.
- That of the library speculators: `speculators_model_type` "eagle3", or "peagle" for P-EAGLE, with the decoder layers'
  fields in `transformer_layer_config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from draftwire_core.engine.drafters.features.config_fields import (
    check_architecture,
    check_known,
    decoder_layers,
    flag_of,
    layer_ids,
    made_for,
    number_of,
    object_of,
    read_config_of,
    speculative_tokens,
    speculators_layers,
    token_of,
)

ORIGINAL_ARCHITECTURE = "LlamaForCausalLMEagle3"
SPECULATORS_TYPE, PARALLEL_TYPE = "eagle3", "peagle"
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_OWN = {"draft_vocab_size", "target_hidden_size", "eagle_aux_hidden_state_layer_ids", *_FLAGS}
_EAGLE_CONFIG: dict[str, object] = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
}
"""Fields of `eagle_config` with the only value that the layers here compute."""
_OTHERS = ("eagle_aux_hidden_state_layer_ids", "parallel_draft_heads_num_layers")
"""Other fields of `eagle_config`; the last one is about heads that checkpoints with one draft step do not have."""


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """The computation of an EAGLE-3 checkpoint's tensors."""

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
    mask_token: int | None = None
    """The token whose embedding stands for one that is to be guessed, in P-EAGLE; None in EAGLE-3."""
    guesses: int = 1
    """Number of tokens that a pass guesses after the root."""


def is_eagle(fields: Mapping[str, Any]) -> bool:
    """Returns whether a config.json is that of an EAGLE-3 drafter, or of an unknown one of speculators."""
    return "speculators_model_type" in fields or ORIGINAL_ARCHITECTURE in (fields.get("architectures") or ())


def read_config(directory: Path) -> EagleConfig:
    """Reads the configuration of a checkpoint. Raises ValueError, which names the field, and OSError."""
    return read_config_of(
        directory, lambda fields: (_speculators if "speculators_model_type" in fields else _original)(fields)
    )


def usual_layers(layers: int) -> tuple[int, ...]:
    """Returns the layers whose inputs EAGLE-3 reads by default in a target with this many layers."""
    return 2, layers // 2, layers - 3


def _original(fields: dict[str, Any]) -> EagleConfig:
    check_architecture(fields, ORIGINAL_ARCHITECTURE, SPECULATORS_TYPE)
    layers = decoder_layers(fields, "", own=_OWN | {"eagle_config"})
    aux = layer_ids(fields, "eagle_aux_hidden_state_layer_ids")
    eagle = object_of(fields, "eagle_config")
    check_known(eagle, {*_EAGLE_CONFIG, *_OTHERS}, "eagle_config.")
    for name, only in _EAGLE_CONFIG.items():
        if eagle.get(name) not in (None, only):
            raise ValueError(f"eagle_config.{name} must be {only}, got {eagle[name]!r}")
    after = layer_ids(eagle, "eagle_aux_hidden_state_layer_ids", "eagle_config.")
    if aux is None and after is not None:
        aux = tuple(layer + 1 for layer in after)  # here ids are of the layers whose outputs are read
    return _config(fields, layers, aux, ())


def _speculators(fields: dict[str, Any]) -> EagleConfig:
    kind = fields["speculators_model_type"]
    own = _OWN | {"mask_token_id"} if kind == PARALLEL_TYPE else _OWN
    layers = speculators_layers(fields, (SPECULATORS_TYPE, PARALLEL_TYPE), own)
    config = _config(fields, layers, layer_ids(fields, "eagle_aux_hidden_state_layer_ids"), made_for(fields, kind))
    if kind == SPECULATORS_TYPE:
        return config
    mask = token_of(fields, "mask_token_id", layers.vocab_size)
    return replace(config, mask_token=mask, guesses=speculative_tokens(fields))


def _config(
    fields: Mapping[str, Any], layers: PretrainedConfig, aux: tuple[int, ...] | None, names: tuple[str, ...]
) -> EagleConfig:
    flags = {name: flag_of(fields, name) for name in _FLAGS}
    if flags["norm_before_fc"] and flags["fc_norm"]:
        raise ValueError("norm_before_fc and fc_norm exclude each other")
    return EagleConfig(
        layers=layers,
        draft_vocab_size=number_of(fields, "draft_vocab_size", layers.vocab_size),
        target_hidden_size=number_of(fields, "target_hidden_size", layers.hidden_size),
        aux_layers=aux,
        target_architectures=names,
        **flags,
    )
