"""Reads and writes DFlash checkpoints: their tensors, under the names of all layouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

from draftwire_core.engine.drafters.dflash.dflash_config import SPECULATORS_TYPE, DflashConfig, read_config
from draftwire_core.engine.drafters.features.draft_network import (
    EMBEDDING,
    HEAD,
    DraftNetwork,
    TargetShape,
    load_network,
    save_network,
    speculators_fields,
    tensors_of,
)
from draftwire_core.engine.model.features.feature_map import FeatureMap, FeatureShape

Dflash: TypeAlias = DraftNetwork[DflashConfig]
_NORM = "output_norm.weight"
_OURS = {"hidden_norm.weight": _NORM, "encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": _NORM}
"""Names of the feature map's tensors in checkpoints, and here."""


def load_dflash(directory: Path, target: TargetShape, dtype: torch.dtype) -> Dflash:
    """Reads a checkpoint and converts its weights to `dtype`. Raises ValueError, which names what is wrong, and
    OSError."""
    config = read_config(directory, target.vocab_size)
    return load_network(
        directory,
        config,
        target,
        config.aux_layers,
        dtype,
        field="the layers to read",
        make=lambda: (dflash_model(config), feature_map(config)),
        rename=lambda name: _OURS.get(name, name),
    )


def dflash_model(config: DflashConfig) -> PreTrainedModel:
    """Returns the decoder with random weights on the current device, its output head over the draft vocabulary.

    In a layer, the keys and values of the text are linear in its features; those of a block, and all else, are computed
    as in any decoder. So the block runs through the layers of Qwen3, behind a context that features have filled.
    """
    model = Qwen3ForCausalLM(config.layers)
    if config.draft_vocab_size != config.layers.vocab_size:
        model.lm_head = nn.Linear(config.layers.hidden_size, config.draft_vocab_size, bias=False)
    return model


def feature_map(config: DflashConfig) -> FeatureMap:
    """Returns the map from the target's states to features, with random weights on the current device."""
    return FeatureMap(
        FeatureShape(
            len(config.aux_layers),
            config.target_hidden_size,
            config.layers.hidden_size,
            norm_features=True,
            epsilon=config.layers.rms_norm_eps,
        )
    )


def save_dflash(
    directory: Path,
    config: DflashConfig,
    weights: Sequence[nn.Module],
    target_ids: torch.Tensor | None,
    *,
    target: str,
    dtype: torch.dtype,
) -> None:
    """Writes a checkpoint in the layout of speculators, which leaves the embedding to the target, and the output head
    as well unless it is over a reduced vocabulary.

    weights: the decoder and the feature map. target_ids: as `DraftNetwork.target_ids`. target: path or hub id of the
    target. dtype: of the tensors.
    """
    tensors = tensors_of(weights, config.layers.vocab_size, target_ids, dtype)
    tensors["hidden_norm.weight"] = tensors.pop(_NORM)
    del tensors[EMBEDDING]
    if target_ids is None:
        del tensors[HEAD]
    save_network(directory, _fields(config, target, dtype), tensors)


def _fields(config: DflashConfig, target: str, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "architectures": ["DFlashDraftModel"],
        **speculators_fields(SPECULATORS_TYPE, config, target, config.guesses, dtype),
        "block_size": config.block_size,
        "aux_hidden_state_layer_ids": list(config.aux_layers),
        "mask_token_id": config.mask_token,
        "sample_from_anchor": config.from_root,
        "sliding_window_non_causal": True,
    }
