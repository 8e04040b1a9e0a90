"""Loads the multi-token prediction layer of a target's checkpoint."""

import torch

from drafter_service.models.loaded_features import FeatureNetwork, LoadedFeatureNetwork, load_network, reading_network
from drafter_service.settings import DrafterSettings
from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.drafters.mtp.mtp_alone import load_alone


def load_mtp_network(settings: DrafterSettings, checkpoint: Checkpoint) -> LoadedFeatureNetwork:
    """Loads the layer, and what it shares with the target, from the target's checkpoint. Raises ModelLoadError and
    StartupError."""

    def read(dtype: torch.dtype) -> FeatureNetwork:
        alone = load_alone(checkpoint, dtype)
        vocabulary = alone.model.config.vocab_size
        model, make = reading_network(alone.model, settings, checkpoint.name, None, norm_output=True)
        layers, architectures = (alone.target_layers,), (alone.architecture,)
        return FeatureNetwork("Mtp", model, make, alone.mapping, layers, vocabulary, vocabulary, architectures)

    return load_network(settings, checkpoint, read)
