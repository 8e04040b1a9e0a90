"""Reads and writes EAGLE-3 checkpoints: their tensors, under the names of both layouts."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from speculative_engine.checkpoint.loose_tensors import read_tensors
from speculative_engine.drafters.eagle.eagle_config import (
    CONFIG,
    SPECULATORS_TYPE,
    EagleConfig,
    read_config,
    usual_layers,
)
from speculative_engine.drafters.eagle.eagle_model import eagle_model, feature_map
from speculative_engine.model.feature_map import FeatureMap

_SAFETENSORS, _PICKLE = "model.safetensors", "pytorch_model.bin"
_IGNORED = ("verifier_norm.weight", "verifier_lm_head.weight", "rotary_emb.inv_freq")
"""Copies of the target's weights for training, and constants that are computed."""
_MAPPING = ("fc.", "input_norm.", "fc_norm.")
_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"


class Eagle(NamedTuple):
    """A checkpoint that fits a target."""

    config: EagleConfig
    model: PreTrainedModel
    """The decoder; without a weight of its own, embedding or output head are still empty, on the device "meta"."""
    mapping: FeatureMap
    aux_layers: tuple[int, ...]
    """Indices of the target's layers whose inputs are read."""
    target_ids: torch.Tensor | None
    """The target's id of each token of the draft vocabulary, int64 [draft vocabulary]; None if ids are the same."""
    lacking: frozenset[str]
    """Names of those weights that have to be the target's own."""


class TargetShape(NamedTuple):
    """What a checkpoint has to fit."""

    layers: int
    hidden_size: int
    vocab_size: int
    architecture: str


def load_eagle(directory: Path, target: TargetShape, dtype: torch.dtype) -> Eagle:
    """Reads a checkpoint and converts its weights to `dtype`. Raises ValueError, which names what is wrong, and
    OSError."""
    config = read_config(directory)
    aux = _check_target(config, target)
    tensors = _named(read_tensors(directory, _SAFETENSORS, _PICKLE))
    target_ids = _target_ids(config, tensors)
    with torch.device("meta"):
        model, mapping = eagle_model(config), feature_map(config, len(aux))
    lacking = _lacking(config, target, tensors)
    places = {**{_short(name): name for name in model.state_dict()}, **{name: name for name in mapping.state_dict()}}
    extra = sorted(set(tensors) - set(places) - {"d2t", "t2d"})
    if extra:
        raise ValueError(f"tensor {extra[0]} is not understood")
    for part in (model, mapping):
        found = {
            name: _checked(_short(name), tensors, tuple(value.shape)).to(dtype)
            for name, value in part.state_dict().items()
            if _short(name) not in lacking
        }
        part.load_state_dict(found, strict=False, assign=True)
        part.requires_grad_(False).eval()
    # Its frequencies are no weights, and cannot have been computed on the device "meta".
    model.model.rotary_emb = type(model.model.rotary_emb)(config.layers)
    return Eagle(config, model, mapping, aux, target_ids, lacking)


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

    weights: the decoder and the feature map. target_ids: as `Eagle.target_ids`. target: path or hub id of the target.
    steps: tokens ahead that it was trained to guess. dtype: of the tensors.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        _short(name): tensor.detach().to("cpu", dtype).contiguous()
        for part in weights
        for name, tensor in part.state_dict().items()
    }
    if target_ids is not None:
        drafted = torch.arange(len(target_ids))
        tensors["d2t"] = target_ids.cpu() - drafted
        tensors["t2d"] = torch.zeros(config.layers.vocab_size, dtype=torch.bool)
        tensors["t2d"][target_ids.cpu()] = True
    fields = _fields(config, target, steps, dtype)
    (directory / CONFIG).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, directory / _SAFETENSORS, metadata={"format": "pt"})
    # save_file makes the file readable only by its owner; a service that runs as another user has to read it.
    (directory / _SAFETENSORS).chmod(stat.S_IMODE((directory / CONFIG).stat().st_mode))


def _fields(config: EagleConfig, target: str, steps: int, dtype: torch.dtype) -> dict[str, Any]:
    layers = config.layers.to_diff_dict()
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "model_type", "head_dim"):
        layers[name] = getattr(config.layers, name)
    proposal = {"proposal_type": "greedy", "speculative_tokens": steps}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": SPECULATORS_TYPE,
        "speculators_config": {
            "algorithm": SPECULATORS_TYPE,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": target, "architectures": list(config.target_architectures)},
        },
        "transformer_layer_config": layers,
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(config.aux_layers or ()),
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
    }


def _check_target(config: EagleConfig, target: TargetShape) -> tuple[int, ...]:
    """Returns the layers to read. Raises ValueError."""
    for what, ours, its in (
        ("hidden size", config.target_hidden_size, target.hidden_size),
        ("vocabulary", config.layers.vocab_size, target.vocab_size),
    ):
        if ours != its:
            raise ValueError(f"made for a {what} of {ours}, but the target's is {its}")
    made_for = config.target_architectures
    if made_for and target.architecture not in made_for:
        raise ValueError(
            f"{CONFIG}: speculators_config.verifier.architectures is {', '.join(made_for)}, but the target is a "
            f"{target.architecture}"
        )
    aux = config.aux_layers if config.aux_layers is not None else usual_layers(target.layers)
    if not all(0 <= layer <= target.layers for layer in aux):
        raise ValueError(
            f"{CONFIG}: eagle_aux_hidden_state_layer_ids are {list(aux)}, but the target has {target.layers} layers"
        )
    return aux


def _named(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors by the names used here."""
    named = {}
    for name, tensor in tensors.items():
        short = name.removeprefix("model.")
        if short.startswith("midlayer."):
            short = f"layers.0.{short.removeprefix('midlayer.')}"
        if not short.endswith(_IGNORED):
            named[short] = tensor
    return named


def _short(name: str) -> str:
    return name.removeprefix("model.")


def _target_ids(config: EagleConfig, tensors: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """The target's id of each draft token, from how far it is from the draft token's own."""
    offsets, vocabulary = tensors.get("d2t"), config.layers.vocab_size
    if offsets is None:
        if config.draft_vocab_size != vocabulary:
            raise ValueError(f"tensor d2t is missing, but draft_vocab_size is not the target's {vocabulary}")
        return None
    _checked("d2t", tensors, (config.draft_vocab_size,))
    ids = offsets.long() + torch.arange(config.draft_vocab_size)
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary or len(ids.unique()) < len(ids):
        raise ValueError(f"tensor d2t does not map to distinct ids below {vocabulary}")
    if "t2d" in tensors:
        drafted = torch.zeros(vocabulary, dtype=torch.bool)
        drafted[ids] = True
        if not torch.equal(_checked("t2d", tensors, (vocabulary,)).bool(), drafted):
            raise ValueError("tensors d2t and t2d contradict each other")
    return None if torch.equal(ids, torch.arange(vocabulary)) else ids


def _lacking(config: EagleConfig, target: TargetShape, tensors: dict[str, torch.Tensor]) -> frozenset[str]:
    lacking = frozenset({_EMBEDDING, _HEAD} - set(tensors))
    if _HEAD in lacking and config.draft_vocab_size != target.vocab_size:
        raise ValueError(f"tensor {_HEAD} is missing, and the target's own is for another vocabulary")
    if lacking and config.layers.hidden_size != target.hidden_size:
        raise ValueError(f"tensor {min(lacking)} is missing, and the target's own is for another hidden size")
    return lacking


def _checked(name: str, tensors: dict[str, torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    tensor = tensors.get(name)
    if tensor is None:
        raise ValueError(f"tensor {name} is missing")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"tensor {name} has shape {tuple(tensor.shape)}, expected {shape}")
    return tensor
