"""Trains an EAGLE-3 drafter within seconds, on texts that a tiny target generated."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from draft_training.data.texts import Windows
from draft_training.eagle.training import EagleTrainer, EagleTraining


def train_eagle(
    base: PreTrainedModel, documents: Sequence[Sequence[int]], directory: Path, *, steps: int = 60, draft_vocab: int = 0
) -> Path:
    """Trains a drafter until it predicts the documents fairly well; returns its directory."""
    training = EagleTraining(ahead=3, steps=steps, batch=4, window=96, learning_rate=1e-2, draft_vocab=draft_vocab)
    EagleTrainer(base, Windows(documents, 96, 5), directory, training, torch.float32).train(lambda _: None)
    return directory
