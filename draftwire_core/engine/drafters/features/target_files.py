"""The parts that a checkpoint leaves to the target, read from the target's files without loading the target."""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoConfig

from draftwire_core.engine.checkpoint.checkpoint import CONFIG, Checkpoint, ModelLoadError
from draftwire_core.engine.checkpoint.plain_files import json_object
from draftwire_core.engine.checkpoint.tensor_files import FLOATS, TensorFiles
from draftwire_core.engine.drafters.features.draft_network import (
    EMBEDDING,
    HEAD,
    ConfigT,
    DraftNetwork,
    NetworkConfig,
    TargetShape,
)

_SIZES = ("num_hidden_layers", "hidden_size", "vocab_size")
"""Fields of a configuration that a checkpoint has to fit."""


def shape_of_files(target: Checkpoint) -> TargetShape:
    """Returns what a checkpoint has to fit, from the target's configuration. Raises ModelLoadError."""
    if target.gguf is not None:
        raise ModelLoadError(f"target {target.name}: must be a directory or a hub id, not a GGUF file")
    try:
        fields = json_object(target.directory / CONFIG)
        text = fields.get("text_config", fields)
        if not text.keys() >= set(_SIZES):  # those of a file that leaves some out are transformers' own
            config = AutoConfig.from_pretrained(target.directory, local_files_only=True)
            text = {name: getattr(config.get_text_config(decoder=True), name) for name in _SIZES}
        layers, width, vocabulary = (int(text[name]) for name in _SIZES)
        return TargetShape(layers, width, vocabulary, str((fields.get("architectures") or [""])[0]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelLoadError(f"target {target.name}: {CONFIG} cannot be read: {error!r}") from error


def claimed_shape(config: NetworkConfig) -> TargetShape:
    """Returns the shape of the target that a checkpoint itself claims. Raises ValueError if it does not say which
    layers it reads."""
    if config.aux_layers is None:
        raise ValueError(
            "its config.json does not say which layers it reads (eagle_aux_hidden_state_layer_ids), which follows from "
            "the target's number of layers: name the target with --target"
        )
    architecture = next(iter(config.target_architectures), "")
    return TargetShape(max(config.aux_layers), config.target_hidden_size, config.layers.vocab_size, architecture)


def lend_from_files(network: DraftNetwork[ConfigT], target: Checkpoint | None, dtype: torch.dtype) -> None:
    """Fills in the weights that the checkpoint leaves to the target. Raises ModelLoadError, and ValueError without a
    target."""
    if not network.lacking:
        return
    if target is None:
        raise ValueError(f"tensor {min(network.lacking)} is the target's own: name the target with --target")
    files = TensorFiles.open(target)
    rows, width = network.config.layers.vocab_size, network.config.layers.hidden_size

    def read(name: str) -> torch.Tensor:
        return files.tensor(name, [(rows, width)], FLOATS).to(dtype)

    embedding = next((name for name in sorted(files.unread) if _is(name, EMBEDDING)), f"model.{EMBEDDING}")
    head = next((name for name in sorted(files.unread) if _is(name, HEAD)), embedding)  # tied
    if EMBEDDING in network.lacking:
        network.model.set_input_embeddings(nn.Embedding.from_pretrained(read(embedding)))
    if HEAD in network.lacking:
        linear = nn.Linear(width, rows, bias=False, device="meta")
        linear.weight = nn.Parameter(read(head), requires_grad=False)
        network.model.set_output_embeddings(linear)


def _is(name: str, short: str) -> bool:
    return name == short or name.endswith(f".{short}")
