"""Trains a DFlash drafter within seconds, on texts that a tiny target generated."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from draftwire_core.training.data.texts import Windows
from draftwire_core.training.dflash.training import DflashTrainer, DflashTraining


def train_dflash(
    base: PreTrainedModel, documents: Sequence[Sequence[int]], directory: Path, *, steps: int = 120
) -> Path:
    """Trains a drafter until it guesses the documents fairly well; returns its directory."""
    mask = int(base.get_output_embeddings().out_features) - 1
    training = DflashTraining(block=5, anchors=32, mask_token=mask, steps=steps, batch=4, window=96, learning_rate=1e-2)
    DflashTrainer(base, Windows(documents, 96, 5), directory, training, torch.float32).train(lambda _: None)
    return directory
