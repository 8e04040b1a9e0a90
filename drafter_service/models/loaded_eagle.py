"""Loads EAGLE-3 checkpoints."""

import json

import torch

from drafter_service.models.loaded_features import FeatureNetwork, LoadedFeatureNetwork, load_network
from drafter_service.settings import DrafterSettings
from speculative_engine.checkpoint.checkpoint import CONFIG, Checkpoint
from speculative_engine.drafters.eagle.eagle_config import ORIGINAL_ARCHITECTURE, read_config
from speculative_engine.drafters.eagle.eagle_files import load_eagle
from speculative_engine.drafters.features.target_files import claimed_shape, lend_from_files, shape_of_files
from speculative_engine.model.packed_model import ModelLoadError


def is_eagle(checkpoint: Checkpoint) -> bool:
    """Returns whether a checkpoint is an EAGLE-3 drafter, or another one in the layout of speculators."""
    if checkpoint.gguf is not None:
        return False
    try:
        fields = json.loads((checkpoint.directory / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # reported by who loads it
    if not isinstance(fields, dict):
        return False
    return "speculators_model_type" in fields or ORIGINAL_ARCHITECTURE in (fields.get("architectures") or ())


def load_eagle_network(settings: DrafterSettings, checkpoint: Checkpoint) -> LoadedFeatureNetwork:
    """Loads an EAGLE-3 checkpoint. Raises StartupError."""

    def read(dtype: torch.dtype) -> FeatureNetwork:
        target = Checkpoint.find(settings.target, hub=settings.allow_hub_models) if settings.target else None
        return _read(checkpoint, target, dtype)

    return load_network(settings, checkpoint, read)


def _read(checkpoint: Checkpoint, target: Checkpoint | None, dtype: torch.dtype) -> FeatureNetwork:
    """Reads a checkpoint with what the target lends it. Raises ModelLoadError."""
    try:
        shape = shape_of_files(target) if target is not None else claimed_shape(read_config(checkpoint.directory))
        eagle = load_eagle(checkpoint.directory, shape, dtype)
        lend_from_files(eagle, target, dtype)
    except (ValueError, OSError, ModelLoadError) as error:
        raise ModelLoadError(f"model {checkpoint.name}: {error}") from error
    return FeatureNetwork(
        "Eagle3",
        eagle.model,
        eagle.mapping,
        eagle.aux_layers,
        eagle.config.norm_output,
        eagle.config.layers.vocab_size,
        eagle.target_ids,
        eagle.config.target_architectures,
    )
