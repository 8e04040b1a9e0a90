"""The target that a checkpoint drafts for, as far as the drafter service knows it: what the checkpoint leaves to it."""

from collections.abc import Callable
from pathlib import Path

import torch

from drafter_service.settings import DrafterSettings
from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.checkpoint.load_errors import load_errors
from draftwire_core.engine.drafters.features.draft_network import ConfigT, DraftNetwork, TargetShape
from draftwire_core.engine.drafters.features.target_files import claimed_shape, lend_from_files, shape_of_files


def complete_network(
    settings: DrafterSettings,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    read_config: Callable[[int | None], ConfigT],
    load: Callable[[Path, TargetShape, torch.dtype], DraftNetwork[ConfigT]],
) -> DraftNetwork[ConfigT]:
    """Reads a checkpoint, with what the target of the settings lends it.

    read_config: reads its configuration, given the number of the target's tokens if it is known. load: reads its
    directory. Raises ModelLoadError.
    """
    target = Checkpoint.find(settings.target, hub=settings.allow_hub_models) if settings.target else None
    with load_errors(f"model {checkpoint.name}"):
        shape = claimed_shape(read_config(None)) if target is None else shape_of_files(target)
        network = load(checkpoint.directory, shape, dtype)
        lend_from_files(network, target, dtype)
    return network
