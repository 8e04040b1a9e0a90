"""Loads networks that read the target's hidden states: EAGLE-3, DFlash, and the MTP layer of a target."""

from collections.abc import Callable
from pathlib import Path

import torch

from drafter_service.models.loaded_features import (
    FeatureNetwork,
    LoadedFeatureNetwork,
    block_network,
    load_network,
    placed,
    reading_network,
)
from drafter_service.settings import DrafterSettings
from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.checkpoint.load_errors import load_errors
from draftwire_core.engine.drafters.dflash.dflash_config import read_config as read_dflash_config
from draftwire_core.engine.drafters.dflash.dflash_files import load_dflash
from draftwire_core.engine.drafters.dflash.dflash_network import DflashNetwork
from draftwire_core.engine.drafters.eagle.eagle_config import read_config as read_eagle_config
from draftwire_core.engine.drafters.eagle.eagle_files import load_eagle
from draftwire_core.engine.drafters.eagle.parallel_network import ParallelEagleNetwork
from draftwire_core.engine.drafters.features.draft_network import ConfigT, DraftNetwork, TargetShape
from draftwire_core.engine.drafters.features.target_files import claimed_shape, lend_from_files, shape_of_files
from draftwire_core.engine.drafters.mtp.mtp_alone import load_alone
from draftwire_core.engine.model.reading.read_model import usable_device
from draftwire_core.runtime.process.startup_error import StartupError


def load_eagle_network(settings: DrafterSettings, checkpoint: Checkpoint) -> LoadedFeatureNetwork:
    """Loads an EAGLE-3 checkpoint. Raises ModelLoadError and StartupError."""
    settings = placed(settings)

    def read(dtype: torch.dtype) -> FeatureNetwork:
        eagle = complete_network(
            settings, checkpoint, dtype, lambda _: read_eagle_config(checkpoint.directory), load_eagle
        )
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
        return FeatureNetwork.of("Eagle3", eagle, packed, block=0 if config.mask_token is None else config.guesses)

    return load_network(settings, checkpoint, read)


def load_mtp_network(settings: DrafterSettings, checkpoint: Checkpoint) -> LoadedFeatureNetwork:
    """Loads the layer, and what it shares with the target, from the target's checkpoint. Raises ModelLoadError and
    StartupError."""
    settings = placed(settings)

    def read(dtype: torch.dtype) -> FeatureNetwork:
        alone = load_alone(checkpoint, dtype)
        vocabulary = alone.model.config.vocab_size
        alone.model.to(usable_device(settings.device))
        model, make = reading_network(alone.model, settings, checkpoint.name, None, norm_output=True)
        layers, architectures = (alone.target_layers,), (alone.architecture,)
        return FeatureNetwork("Mtp", model, make, alone.mapping, layers, vocabulary, vocabulary, architectures)

    return load_network(settings, checkpoint, read)


def load_dflash_network(settings: DrafterSettings, checkpoint: Checkpoint) -> LoadedFeatureNetwork:
    """Loads a DFlash checkpoint. Raises ModelLoadError and StartupError."""
    settings = placed(settings)
    if settings.weights != "checkpoint":
        raise StartupError(f"--weights: {settings.weights} does not apply to {settings.model}, which guesses blocks")

    def read(dtype: torch.dtype) -> FeatureNetwork:
        dflash = complete_network(
            settings,
            checkpoint,
            dtype,
            lambda vocabulary: read_dflash_config(checkpoint.directory, vocabulary),
            load_dflash,
        )
        packed = block_network(dflash.model, lambda: DflashNetwork(dflash, settings.kv_slots, checkpoint.name))
        return FeatureNetwork.of("Dflash", dflash, packed, dflash.config.window, dflash.config.block_size)

    return load_network(settings, checkpoint, read)


def complete_network(
    settings: DrafterSettings,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    read_config: Callable[[int | None], ConfigT],
    load: Callable[[Path, TargetShape, torch.dtype], DraftNetwork[ConfigT]],
) -> DraftNetwork[ConfigT]:
    """Reads a checkpoint, with what it takes from the target of the settings.

    read_config: reads its configuration, given the number of the target's tokens if it is known. load: reads its
    directory. Raises ModelLoadError.
    """
    # The operator names the target, which may be a hub id even if a caller names the model.
    target = Checkpoint.find(settings.target) if settings.target else None
    with load_errors(f"model {checkpoint.name}"):
        shape = claimed_shape(read_config(None)) if target is None else shape_of_files(target)
        network = load(checkpoint.directory, shape, dtype)
        lend_from_files(network, target, dtype)
    return network.to(usable_device(settings.device))
