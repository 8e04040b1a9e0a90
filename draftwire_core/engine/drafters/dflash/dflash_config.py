"""The configuration of a DFlash checkpoint, in the three layouts that exist.

- The original one: architecture `DFlashDraftModel`, with the fields of a Qwen3 configuration at the top level, and
  those of the method in `dflash_config`.
- That of the library speculators: `speculators_model_type` "dflash", with the decoder layers' fields in
  `transformer_layer_config`.
- That of transformers: `model_type` "muse_glimmer_assistant".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig, Qwen3Config

from draftwire_core.engine.drafters.features.config_fields import (
    MOST_GUESSES,
    check_architecture,
    check_known,
    decoder_layers,
    flag_of,
    layer_ids,
    made_for,
    number_of,
    object_of,
    read_config_of,
    speculators_layers,
    token_of,
)

ORIGINAL_ARCHITECTURE = "DFlashDraftModel"
SPECULATORS_TYPE = "dflash"
ASSISTANT_TYPE = "muse_glimmer_assistant"
_OWN = {
    "draft_vocab_size", "target_hidden_size", "aux_hidden_state_layer_ids", "block_size", "mask_token_id",
    "sliding_window_non_causal", "sample_from_anchor",
}  # fmt: skip
_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class DflashConfig:
    """The computation of a DFlash checkpoint's tensors."""

    layers: Qwen3Config
    """The decoder layers; its vocabulary is the target's."""
    draft_vocab_size: int
    """Number of tokens that the output head knows."""
    target_hidden_size: int
    aux_layers: tuple[int, ...]
    """Indices of the target's layers whose inputs are read."""
    block_size: int
    """Rows of a block: the last committed token, and masks."""
    mask_token: int
    """The token whose embedding stands for one that is to be guessed."""
    from_root: bool = False
    """Whether the first row guesses, too, and every row the token after its place instead of the one in its place."""
    target_architectures: tuple[str, ...] = ()
    """Architectures of the target it was trained for; empty if unknown."""
    unscaled: bool = True
    """Whether it reads the vectors of the target's embedding without the factor that some targets have there, such as
    Gemma: so do speculators, and what is trained here."""

    @property
    def guesses(self) -> int:
        """Number of tokens that a block guesses."""
        return self.block_size if self.from_root else self.block_size - 1

    @property
    def window(self) -> int:
        """Last tokens before a block that any layer sees; 0 for all."""
        if _FULL in self.layers.layer_types:
            return 0
        return int(self.layers.sliding_window) - self.block_size


def is_dflash(fields: Mapping[str, Any]) -> bool:
    """Returns whether a config.json is that of a DFlash checkpoint."""
    return (
        fields.get("speculators_model_type") == SPECULATORS_TYPE
        or ORIGINAL_ARCHITECTURE in (fields.get("architectures") or ())
        or fields.get("model_type") == ASSISTANT_TYPE
    )


def read_config(directory: Path, vocab_size: int | None) -> DflashConfig:
    """Reads the configuration of a checkpoint. Raises ValueError, which names the field, and OSError.

    vocab_size: the target's, for checkpoints that do not say it; None if unknown.
    """

    def read(fields: dict[str, Any]) -> DflashConfig:
        if "speculators_model_type" in fields:
            return _speculators(fields)
        return _assistant(fields, vocab_size) if fields.get("model_type") == ASSISTANT_TYPE else _original(fields)

    return read_config_of(directory, read)


def _speculators(fields: dict[str, Any]) -> DflashConfig:
    layers = speculators_layers(fields, (SPECULATORS_TYPE,), _OWN, otherwise="qwen3")
    given, place = fields["transformer_layer_config"], "transformer_layer_config."
    if not flag_of(fields, "sliding_window_non_causal") and _SLIDING in _kinds(given, place):
        raise ValueError("sliding_window_non_causal must be true for layers with sliding attention")
    return _config(
        fields,
        _blocks(layers, given, number_of(fields, "block_size", 8), place),
        draft_vocab_size=number_of(fields, "draft_vocab_size", 32000),
        aux=layer_ids(fields, "aux_hidden_state_layer_ids"),
        field="aux_hidden_state_layer_ids",
        from_root=flag_of(fields, "sample_from_anchor"),
        target_architectures=made_for(fields, SPECULATORS_TYPE),
    )


def _original(fields: dict[str, Any]) -> DflashConfig:
    check_architecture(fields, ORIGINAL_ARCHITECTURE, SPECULATORS_TYPE)
    own = object_of(fields, "dflash_config")
    check_known(own, {"target_layer_ids", "mask_token_id", "block_size"}, "dflash_config.")
    layers = decoder_layers(fields, "", own={"dflash_config", "block_size", "num_target_layers"}, kind="qwen3")
    # Older checkpoints have the block's size next to the layers' fields.
    method = {**own, "block_size": own.get("block_size") or fields.get("block_size")}
    after = layer_ids(own, "target_layer_ids", "dflash_config.")
    return _config(
        method,
        _blocks(layers, fields, number_of(method, "block_size", None), ""),
        draft_vocab_size=layers.vocab_size,
        aux=_inputs(after),
        field="dflash_config.target_layer_ids",
        unscaled=False,
    )


def _assistant(fields: dict[str, Any], vocab_size: int | None) -> DflashConfig:
    if vocab_size is None:
        raise ValueError("does not say the target's vocabulary: name the target with --target")
    own = {"block_size", "mask_token_id", "target_layer_ids"}
    given = {name: value for name, value in fields.items() if name != "model_type"}
    # Its layers have no biases, and slide unless the file says otherwise.
    number = number_of(fields, "num_hidden_layers", 5)
    given = {"layer_types": [_SLIDING] * number, "sliding_window": 2048, **given, "vocab_size": vocab_size}
    layers = decoder_layers(given, "", own=own, kind="qwen3")
    return _config(
        given,
        _blocks(layers, given, number_of(fields, "block_size", 16), ""),
        draft_vocab_size=vocab_size,
        aux=_inputs(layer_ids(fields, "target_layer_ids")),
        field="target_layer_ids",
        unscaled=False,
    )


def _config(
    fields: Mapping[str, Any], layers: Qwen3Config, *, aux: tuple[int, ...] | None, field: str, **known: Any
) -> DflashConfig:
    """field: that names the layers to read."""
    if aux is None:
        raise ValueError(f"{field} must be a list of layers' indices, got None")
    block = number_of(fields, "block_size", 8, most=MOST_GUESSES)
    if block < 2:
        raise ValueError(f"block_size must be at least 2, got {block}")
    mask = token_of(fields, "mask_token_id", layers.vocab_size)
    width = number_of(fields, "target_hidden_size", layers.hidden_size)
    if width != layers.hidden_size:
        raise ValueError(f"target_hidden_size must be that of the layers, {layers.hidden_size}, got {width}")
    return DflashConfig(
        layers=layers, target_hidden_size=width, aux_layers=aux, block_size=block, mask_token=mask, **known
    )


def _blocks(layers: PretrainedConfig, given: Mapping[str, Any], block: int, place: str) -> Qwen3Config:
    """Returns the configuration of the layers as they run here: of Qwen3, whatever the target's own are.

    The rows of a block look back from its first row, and see all of the block. So the last row's window is wider.
    """
    kinds, window = _kinds(given, place), None
    if _SLIDING in kinds:
        window = number_of(given, "sliding_window", None, place) + block
    return Qwen3Config(
        vocab_size=layers.vocab_size,
        hidden_size=layers.hidden_size,
        intermediate_size=layers.intermediate_size,
        num_hidden_layers=layers.num_hidden_layers,
        num_attention_heads=layers.num_attention_heads,
        num_key_value_heads=layers.num_key_value_heads,
        head_dim=getattr(layers, "head_dim", None) or layers.hidden_size // layers.num_attention_heads,
        hidden_act=layers.hidden_act,
        max_position_embeddings=layers.max_position_embeddings,
        rms_norm_eps=layers.rms_norm_eps,
        rope_parameters=layers.rope_parameters,
        attention_bias=layers.attention_bias,
        tie_word_embeddings=False,
        layer_types=list(kinds) or [_FULL] * layers.num_hidden_layers,
        use_sliding_window=window is not None,
        sliding_window=window,
    )


def _kinds(given: Mapping[str, Any], place: str) -> tuple[str, ...]:
    """Returns the attention of each layer; nothing if all are alike."""
    kinds = given.get("layer_types")
    if kinds is None:
        return ()
    if not isinstance(kinds, list) or not set(kinds) <= {_FULL, _SLIDING}:
        raise ValueError(f"{place}layer_types must be a list of {_FULL} and {_SLIDING}, got {kinds!r}")
    return tuple(kinds)


def _inputs(after: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Returns the layers whose inputs are read, from those whose outputs are."""
    return None if after is None else tuple(layer + 1 for layer in after)
