"""Loads DFlash checkpoints."""

import torch

from drafter_service.models.lending_target import complete_network
from drafter_service.models.loaded_features import FeatureNetwork, LoadedFeatureNetwork, block_network, load_network
from drafter_service.settings import DrafterSettings
from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.drafters.dflash.dflash_config import read_config
from draftwire_core.engine.drafters.dflash.dflash_files import load_dflash
from draftwire_core.engine.drafters.dflash.dflash_network import DflashNetwork
from draftwire_core.runtime.process.startup_error import StartupError


def load_dflash_network(settings: DrafterSettings, checkpoint: Checkpoint) -> LoadedFeatureNetwork:
    """Loads a DFlash checkpoint. Raises ModelLoadError and StartupError."""
    if settings.weights != "checkpoint":
        raise StartupError(f"--weights: {settings.weights} does not apply to {settings.model}, which guesses blocks")

    def read(dtype: torch.dtype) -> FeatureNetwork:
        dflash = complete_network(
            settings, checkpoint, dtype, lambda vocabulary: read_config(checkpoint.directory, vocabulary), load_dflash
        )
        packed = block_network(dflash.model, lambda: DflashNetwork(dflash, settings.kv_slots, checkpoint.name))
        return FeatureNetwork.of("Dflash", dflash, packed, dflash.config.window)

    return load_network(settings, checkpoint, read)
