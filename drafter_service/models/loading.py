"""Loads whatever a drafter is to draft with, by its settings and its files."""

from collections.abc import Mapping
from typing import Any

from drafter_service.models.loaded_features import LoadedFeatureNetwork
from drafter_service.models.loaded_heads import LoadedHeads, load_heads
from drafter_service.models.loaded_model import LoadedModel, NoMemoryError, load_model
from drafter_service.models.loaded_networks import load_dflash_network, load_eagle_network, load_mtp_network
from drafter_service.settings import DrafterSettings
from draftwire_core.engine.checkpoint.checkpoint import CONFIG, Checkpoint
from draftwire_core.engine.checkpoint.load_errors import load_errors
from draftwire_core.engine.checkpoint.plain_files import json_object
from draftwire_core.engine.drafters.dflash.dflash_config import is_dflash
from draftwire_core.engine.drafters.eagle.eagle_config import is_eagle
from draftwire_core.engine.errors import ModelMemoryError
from draftwire_core.engine.loading.rank_processes import RANK_ERRORS
from draftwire_core.engine.model.ranks.rank_group import RankGroup
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.startup_error import StartupError

log = get_logger(__name__)

Loaded = LoadedModel | LoadedHeads | LoadedFeatureNetwork


def load_drafter(settings: DrafterSettings, ranks: RankGroup | None = None) -> Loaded:
    """Loads the model or the heads of the settings. Too slow for the event loop.

    ranks: the ranks that this process leads, if the model is split. Raises StartupError, in the form of NoMemoryError
    for lack of memory.
    """
    try:
        with load_errors(f"model {settings.medusa_heads or settings.model}", StartupError, *RANK_ERRORS):
            return _load(settings, ranks)
    except ModelMemoryError as error:
        raise NoMemoryError(str(error)) from error
    except RANK_ERRORS as error:
        raise StartupError(str(error)) from error


def _load(settings: DrafterSettings, ranks: RankGroup | None) -> Loaded:
    if settings.medusa_heads:
        return load_heads(settings)
    if ranks is None:
        checkpoint = Checkpoint.find(settings.model, hub=settings.allow_hub_models)
        fields = _fields(checkpoint)
        if is_dflash(fields):
            return load_dflash_network(settings, checkpoint)
        if is_eagle(fields):
            return load_eagle_network(settings, checkpoint)
        if settings.mtp:
            return load_mtp_network(settings, checkpoint)
    if settings.target is not None or settings.feature_dtype != "auto" or settings.feature_window:
        log.warning(
            "settings ignored",
            settings=["--target", "--feature-dtype", "--feature-window"],
            model=settings.model,
            because="the model does not draft from features",
        )
    return load_model(settings, ranks)


def _fields(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Returns the fields of a checkpoint's configuration; none if it cannot be read, which its loader reports."""
    if checkpoint.gguf is not None:
        return {}
    try:
        return json_object(checkpoint.directory / CONFIG)
    except (OSError, ValueError):
        return {}
