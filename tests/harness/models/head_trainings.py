"""Short trainings of drafters on a frozen target, of each kind."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from draftwire_core.engine.drafters.features.draft_network import TargetShape
from draftwire_core.training.data.texts import Windows
from draftwire_core.training.dflash.training import DflashTrainer, DflashTraining
from draftwire_core.training.eagle.training import EagleTrainer, EagleTraining
from draftwire_core.training.medusa.training import MedusaTrainer, MedusaTraining

DOCUMENTS = [[3 + (7 * start + place) % 50 for place in range(40)] for start in range(12)]
WINDOW = 32
_KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "eagle3": (EagleTrainer, EagleTraining, {"ahead": 2}),
    "dflash": (DflashTrainer, DflashTraining, {"block": 3, "anchors": 8, "mask_token": 2}),
    "medusa": (MedusaTrainer, MedusaTraining, {"heads": 2}),
}


def trainer_of(
    kind: str,
    base: PreTrainedModel,
    directory: Path,
    documents: Sequence[Sequence[int]] = DOCUMENTS,
    **options: Any,
) -> Any:
    """Returns a trainer. options: those of the training that are not the usual small ones."""
    make, training, small = _KINDS[kind]
    usual = {"steps": 6, "batch": 2, "window": WINDOW, "learning_rate": 1e-2, **small}
    windows = Windows(documents, WINDOW, 4)
    return make(base, windows, directory, training(**{**usual, **options}), torch.float32)


def shape_of(base: PreTrainedModel) -> TargetShape:
    """Returns what a drafter of the target has to fit."""
    config = base.config
    return TargetShape(config.num_hidden_layers, config.hidden_size, config.vocab_size, type(base).__name__)
