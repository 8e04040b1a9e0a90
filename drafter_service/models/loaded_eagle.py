"""Loads EAGLE-3 checkpoints, which draft from features that verifiers send."""

import json
import time
from dataclasses import dataclass

import torch
from torch import nn

from drafter_service.models.loaded_model import model_info, set_threads
from drafter_service.settings import DrafterSettings
from draftwire.v1 import model_info_pb2
from draftwire.v1.features_pb2 import FeatureMap as FeatureMapMessage
from service_runtime.process.logs import get_logger
from service_runtime.process.startup_error import StartupError
from speculative_engine.checkpoint.checkpoint import CONFIG, Checkpoint
from speculative_engine.drafters.eagle.eagle3 import try_out
from speculative_engine.drafters.eagle.eagle_config import ORIGINAL_ARCHITECTURE, read_config
from speculative_engine.drafters.eagle.eagle_files import Eagle, load_eagle
from speculative_engine.drafters.eagle.target_files import claimed_shape, lend_from_files, shape_of_files
from speculative_engine.loading.step_timing import measure_step_cost
from speculative_engine.model.feature_map import FeatureMap
from speculative_engine.model.packed_model import ModelLoadError, PackedModel
from speculative_engine.model.read_model import resolve_dtype
from speculative_engine.planning.step_cost import StepCost
from speculative_engine.text.tokenizer import Tokenizer

log = get_logger(__name__)

_CONTEXT = 1 << 17
"""Tokens that a drafter follows at least, however short the texts of its training."""


@dataclass(frozen=True, slots=True)
class LoadedEagle:
    """A loaded EAGLE-3 network, and its description for verifiers."""

    model: PackedModel
    info: model_info_pb2.ModelInfo
    cost: StepCost
    """Measured cost of the network's steps."""
    target_ids: torch.Tensor | None
    """See `Eagle.target_ids`."""
    feed_back: nn.Module
    """Maps a row's last hidden states to what its children read."""
    mapping: FeatureMap
    """The map that verifiers apply to their target's states."""
    features: FeatureMapMessage
    """Its description."""


def is_eagle(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is one of EAGLE-3, or of another kind of speculators."""
    if checkpoint.gguf is not None:
        return False
    try:
        fields = json.loads((checkpoint.directory / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # reported by who loads it
    if not isinstance(fields, dict):
        return False
    return "speculators_model_type" in fields or ORIGINAL_ARCHITECTURE in (fields.get("architectures") or ())


def load_eagle_model(settings: DrafterSettings, checkpoint: Checkpoint) -> LoadedEagle:
    """Loads an EAGLE-3 checkpoint. Raises StartupError."""
    started = time.perf_counter()
    log.info("loading", model=settings.model)
    _check(settings)
    set_threads(settings)
    try:
        target = Checkpoint.find(settings.target, hub=settings.allow_hub_models) if settings.target else None
        dtype = resolve_dtype(settings.dtype, torch.device("cpu"))
        eagle = _read(checkpoint, target, dtype)
        # Positions beyond those of its training only cost acceptance.
        eagle.model.config.max_position_embeddings = max(eagle.model.config.max_position_embeddings, _CONTEXT)
        model = PackedModel(eagle.model, settings.kv_slots, name=checkpoint.name, row_exact=False)
        try_out(model)
        place = target or checkpoint
        has_tokenizer = (place.directory / "tokenizer.json").exists()
        tokenizer = Tokenizer.load(place).sha256 if has_tokenizer else ""
    except ModelLoadError as error:
        raise StartupError(str(error)) from error
    cost = measure_step_cost(model, reads_features=True)
    info = model_info(model, tokenizer, bit_exact=False)
    info.architecture, info.vocab_size = "Eagle3", eagle.config.layers.vocab_size
    features = _describe(eagle, settings, dtype)
    log.info(
        "model loaded",
        model=info.model_id,
        architecture=info.architecture,
        reads_layers=list(features.layers),
        features=f"{features.width} {features.dtype}",
        draft_vocab_size=eagle.config.draft_vocab_size,
        kv_slots=model.pool.capacity,
        layer_kernels=model.layer_kernels,
        step_seconds=round(cost.seconds(1), 6),
        seconds=round(time.perf_counter() - started, 3),
    )
    feed_back = eagle.model.model.norm if eagle.config.norm_output else nn.Identity()
    return LoadedEagle(model, info, cost, eagle.target_ids, feed_back, eagle.mapping, features)


def _check(settings: DrafterSettings) -> None:
    """Raises StartupError for settings of draft models."""
    for name, given, allowed in (
        ("device", settings.device, "cpu"),
        ("weights", settings.weights, "checkpoint"),
        ("layers", settings.layers, None),
        ("target-tokenizer", settings.target_tokenizer, None),
        ("tensor-parallel", settings.tensor_parallel, 1),
    ):
        if given != allowed:
            raise StartupError(f"--{name}: {given} does not apply to an EAGLE-3 checkpoint, {settings.model}")


def _read(checkpoint: Checkpoint, target: Checkpoint | None, dtype: torch.dtype) -> Eagle:
    """Reads a checkpoint with what the target lends it. Raises ModelLoadError."""
    try:
        shape = shape_of_files(target) if target is not None else claimed_shape(read_config(checkpoint.directory))
        eagle = load_eagle(checkpoint.directory, shape, dtype)
        lend_from_files(eagle, target, dtype)
    except (ValueError, OSError, ModelLoadError) as error:
        raise ModelLoadError(f"model {checkpoint.name}: {error}") from error
    return eagle


def _describe(eagle: Eagle, settings: DrafterSettings, dtype: torch.dtype) -> FeatureMapMessage:
    shape, own = eagle.mapping.shape, str(dtype).removeprefix("torch.")
    return FeatureMapMessage(
        layers=eagle.aux_layers,
        hidden_size=shape.hidden_size,
        width=shape.width,
        dtype=own if settings.feature_dtype == "auto" else settings.feature_dtype,
        norm_states=shape.norm_states,
        norm_each_state=shape.norm_each_state,
        norm_features=shape.norm_features,
        norm_epsilon=shape.epsilon,
        weights_dtype=own,
        weights_sha256=eagle.mapping.digest(),
        target_architectures=eagle.config.target_architectures,
    )
