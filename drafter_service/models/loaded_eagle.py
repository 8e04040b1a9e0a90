"""Loads EAGLE-3 checkpoints."""

import torch

from drafter_service.models.lending_target import complete_network
from drafter_service.models.loaded_features import (
    FeatureNetwork,
    LoadedFeatureNetwork,
    block_network,
    load_network,
    reading_network,
)
from drafter_service.settings import DrafterSettings
from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.drafters.eagle.eagle_config import read_config
from draftwire_core.engine.drafters.eagle.eagle_files import load_eagle
from draftwire_core.engine.drafters.eagle.parallel_network import ParallelEagleNetwork


def load_eagle_network(settings: DrafterSettings, checkpoint: Checkpoint) -> LoadedFeatureNetwork:
    """Loads an EAGLE-3 checkpoint. Raises ModelLoadError and StartupError."""

    def read(dtype: torch.dtype) -> FeatureNetwork:
        eagle = complete_network(settings, checkpoint, dtype, lambda _: read_config(checkpoint.directory), load_eagle)
        config = eagle.config
        if config.mask_token is not None:
            packed = block_network(
                eagle.model,
                lambda: ParallelEagleNetwork(eagle, settings.kv_slots, checkpoint.name, settings.weights),
            )
        else:
            packed = reading_network(
                eagle.model, settings, checkpoint.name, eagle.target_ids, norm_output=config.norm_output
            )
        return FeatureNetwork.of("Eagle3", eagle, packed)

    return load_network(settings, checkpoint, read)
