"""A network that reads features, as its checkpoint has it: the tensors, and those it takes from the target."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from draftwire_core.engine.checkpoint.loose_tensors import read_tensors, tensor_of, write_tensors
from draftwire_core.engine.drafters.features.config_fields import CONFIG
from draftwire_core.engine.model.features.feature_map import FeatureMap

_SAFETENSORS, _PICKLE = "model.safetensors", "pytorch_model.bin"
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
_IGNORED = ("verifier_norm.weight", "verifier_lm_head.weight", "rotary_emb.inv_freq")
"""Copies of the target's weights for training, and constants that are computed."""


class TargetShape(NamedTuple):
    """The target that a checkpoint has to fit."""

    layers: int
    hidden_size: int
    vocab_size: int
    architecture: str


class NetworkConfig(Protocol):
    """The common part of the configurations of all kinds."""

    @property
    def layers(self) -> PretrainedConfig:
        """The decoder layers; its vocabulary is the target's."""

    @property
    def draft_vocab_size(self) -> int:
        """Number of tokens that the output head knows."""

    @property
    def target_hidden_size(self) -> int:
        """Elements of the target's hidden states."""

    @property
    def aux_layers(self) -> tuple[int, ...] | None:
        """Indices of the target's layers whose inputs are read; None for the usual ones."""

    @property
    def target_architectures(self) -> tuple[str, ...]:
        """Architectures of the target it was trained for; empty if unknown."""


ConfigT = TypeVar("ConfigT", bound=NetworkConfig)


@dataclass(frozen=True, slots=True)
class DraftNetwork(Generic[ConfigT]):
    """A checkpoint that fits a target."""

    config: ConfigT
    model: PreTrainedModel
    """The decoder; without a weight of its own, embedding or output head are still empty, on the device "meta"."""
    mapping: FeatureMap
    aux_layers: tuple[int, ...]
    """Indices of the target's layers whose inputs are read."""
    target_ids: torch.Tensor | None
    """The target's id of each token of the draft vocabulary, int64 [draft vocabulary]; None if ids are the same."""
    lacking: frozenset[str]
    """Names of those weights that have to be the target's own."""

    def to(self, device: torch.device) -> DraftNetwork[ConfigT]:
        """Moves a complete network to a device; returns it."""
        self.model.to(device)
        self.mapping.to(device)
        return self if self.target_ids is None else replace(self, target_ids=self.target_ids.to(device))


def _check_target(config: NetworkConfig, target: TargetShape, aux: Sequence[int], field: str) -> None:
    for what, ours, its in (
        ("hidden size", config.target_hidden_size, target.hidden_size),
        ("vocabulary size", config.layers.vocab_size, target.vocab_size),
    ):
        if ours != its:
            raise ValueError(f"{what} {ours} does not match the target's {its}")
    made_for = config.target_architectures
    if made_for and target.architecture not in made_for:
        raise ValueError(
            f"{CONFIG}: speculators_config.verifier.architectures is {', '.join(made_for)}, but the target is a "
            f"{target.architecture}"
        )
    if not all(0 <= layer <= target.layers for layer in aux):
        raise ValueError(f"{CONFIG}: {field} are {list(aux)}, but the target has {target.layers} layers")


def _short(name: str) -> str:
    """Returns the name of a tensor in checkpoints."""
    return name.removeprefix("model.")


def load_network(
    directory: Path,
    config: ConfigT,
    target: TargetShape,
    aux: tuple[int, ...],
    dtype: torch.dtype,
    *,
    field: str,
    make: Callable[[], tuple[PreTrainedModel, FeatureMap]],
    rename: Callable[[str], str],
) -> DraftNetwork[ConfigT]:
    """Reads a checkpoint whose configuration has been read, and converts its weights to `dtype`.

    aux: the layers to read. field: that names them. make: makes the decoder and the map. rename: from names of tensors
    in checkpoints, without `model.`, to names used here. Raises ValueError, which names what is wrong, and OSError.
    """
    _check_target(config, target, aux, field)
    tensors = {
        rename(_short(name)): tensor
        for name, tensor in read_tensors(directory, _SAFETENSORS, _PICKLE).items()
        if not name.endswith(_IGNORED)
    }
    with torch.device("meta"):
        parts = make()
    target_ids = _target_ids(config, tensors)
    lacking = _lacking(config, target, tensors)
    model, mapping = parts
    places = {_short(name) for part in parts for name in part.state_dict()}
    extra = sorted(set(tensors) - places - {"d2t", "t2d"})
    if extra:
        raise ValueError(f"tensor {extra[0]} is not supported")
    for part in parts:
        found = {
            name: tensor_of(_short(name), tensors, tuple(value.shape)).to(dtype)
            for name, value in part.state_dict().items()
            if _short(name) not in lacking
        }
        part.load_state_dict(found, strict=False, assign=True)
        part.requires_grad_(False).eval()
    # Its frequencies are no weights, and cannot have been computed on the device "meta".
    model.model.rotary_emb = type(model.model.rotary_emb)(config.layers)
    return DraftNetwork(config, model, mapping, aux, target_ids, lacking)


def tensors_of(
    weights: Sequence[nn.Module], vocabulary: int, target_ids: torch.Tensor | None, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Returns the tensors of a checkpoint in the layout of speculators.

    vocabulary: number of the target's tokens. target_ids: as `DraftNetwork.target_ids`.
    """
    tensors = {
        _short(name): tensor.detach().to("cpu", dtype).contiguous()
        for part in weights
        for name, tensor in part.state_dict().items()
    }
    if target_ids is not None:
        drafted = torch.arange(len(target_ids))
        tensors["d2t"] = target_ids.cpu() - drafted
        tensors["t2d"] = torch.zeros(vocabulary, dtype=torch.bool)
        tensors["t2d"][target_ids.cpu()] = True
    return tensors


def speculators_fields(kind: str, config: NetworkConfig, target: str, steps: int, dtype: torch.dtype) -> dict[str, Any]:
    """Returns the fields that config.json has in the layout of speculators for any kind of network.

    target: path or hub id of the target. steps: tokens ahead that it guesses. dtype: of the tensors.
    """
    layers = config.layers.to_diff_dict()
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "model_type", "head_dim", "layer_types"):
        if getattr(config.layers, name, None) is not None:
            layers[name] = getattr(config.layers, name)
    return {
        "speculators_model_type": kind,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": steps}],
            "verifier": {"name_or_path": target, "architectures": list(config.target_architectures)},
        },
        "transformer_layer_config": layers,
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "tie_word_embeddings": False,
        "dtype": str(dtype).removeprefix("torch."),
    }


def save_network(directory: Path, fields: Mapping[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Writes a checkpoint. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CONFIG).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    write_tensors(directory / _SAFETENSORS, tensors, directory / CONFIG)


def _target_ids(config: NetworkConfig, tensors: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """The target's id of each draft token, from how far it is from the draft token's own."""
    offsets, vocabulary = tensors.get("d2t"), config.layers.vocab_size
    if offsets is None:
        if config.draft_vocab_size != vocabulary:
            raise ValueError(f"tensor d2t is missing, but draft_vocab_size is not the target's {vocabulary}")
        return None
    tensor_of("d2t", tensors, (config.draft_vocab_size,))
    ids = offsets.long() + torch.arange(config.draft_vocab_size)
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary or len(ids.unique()) < len(ids):
        raise ValueError(f"tensor d2t does not map to distinct ids below {vocabulary}")
    if "t2d" in tensors:
        drafted = torch.zeros(vocabulary, dtype=torch.bool)
        drafted[ids] = True
        if not torch.equal(tensor_of("t2d", tensors, (vocabulary,)).bool(), drafted):
            raise ValueError("tensors d2t and t2d contradict each other")
    return None if torch.equal(ids, torch.arange(vocabulary)) else ids


def _lacking(config: NetworkConfig, target: TargetShape, tensors: dict[str, torch.Tensor]) -> frozenset[str]:
    lacking = frozenset({EMBEDDING, HEAD} - set(tensors))
    if HEAD in lacking and config.draft_vocab_size != target.vocab_size:
        raise ValueError(f"tensor {HEAD} is missing, and the target's own is for another vocabulary")
    if lacking and config.layers.hidden_size != target.hidden_size:
        raise ValueError(f"tensor {min(lacking)} is missing, and the target's own is for another hidden size")
    return lacking


def in_target_ids(logits: torch.Tensor, target_ids: torch.Tensor | None, vocabulary: int) -> torch.Tensor:
    """Returns logits by the target's ids, [rows, vocabulary], -inf for tokens that the drafter does not know.

    logits: [rows, draft vocabulary]. target_ids: see `DraftNetwork.target_ids`.
    """
    if target_ids is None:
        return logits
    spread = logits.new_full((len(logits), vocabulary), -torch.inf)
    spread[:, target_ids] = logits
    return spread
