"""Reads and writes EAGLE-3 checkpoints: their tensors, under the names of both layouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from draftwire_core.engine.drafters.eagle.eagle_config import SPECULATORS_TYPE, EagleConfig, read_config, usual_layers
from draftwire_core.engine.drafters.eagle.eagle_model import eagle_model, feature_map
from draftwire_core.engine.drafters.features.draft_network import (
    DraftNetwork,
    TargetShape,
    load_network,
    save_network,
    speculators_fields,
    tensors_of,
)

_AUX = "eagle_aux_hidden_state_layer_ids"
Eagle: TypeAlias = DraftNetwork[EagleConfig]


def load_eagle(directory: Path, target: TargetShape, dtype: torch.dtype) -> Eagle:
    """Reads a checkpoint and converts its weights to `dtype`. Raises ValueError, which names what is wrong, and
    OSError."""
    config = read_config(directory)
    aux = config.aux_layers if config.aux_layers is not None else usual_layers(target.layers)
    return load_network(
        directory,
        config,
        target,
        aux,
        dtype,
        field=_AUX,
        make=lambda: (eagle_model(config), feature_map(config, len(aux))),
        rename=lambda name: f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name,
    )


def save_eagle(
    directory: Path,
    config: EagleConfig,
    weights: Sequence[nn.Module],
    target_ids: torch.Tensor | None,
    *,
    target: str,
    steps: int,
    dtype: torch.dtype,
) -> None:
    """Writes a checkpoint in the layout of speculators.

    weights: the decoder and the feature map. target_ids: as `DraftNetwork.target_ids`. target: path or hub id of the
    target. steps: tokens ahead that it was trained to guess. dtype: of the tensors.
    """
    tensors = tensors_of(weights, config.layers.vocab_size, target_ids, dtype)
    save_network(directory, _fields(config, target, steps, dtype), tensors)


def _fields(config: EagleConfig, target: str, steps: int, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "architectures": ["Eagle3DraftModel"],
        **speculators_fields(SPECULATORS_TYPE, config, target, steps, dtype),
        _AUX: list(config.aux_layers or ()),
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
    }
