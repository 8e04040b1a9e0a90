"""Trains Medusa heads within seconds, on texts that a tiny target generated."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from draftwire_core.training.data.texts import Windows
from draftwire_core.training.medusa.training import MedusaTrainer, MedusaTraining


def train_heads(
    base: PreTrainedModel, documents: Sequence[Sequence[int]], directory: Path, *, heads: int = 3, steps: int = 40
) -> Path:
    """Trains heads until they predict the documents fairly well; returns their directory."""
    training = MedusaTraining(heads=heads, steps=steps, batch=4, window=64, learning_rate=1e-2)
    MedusaTrainer(base, Windows(documents, 64, heads + 2), directory, training, torch.float32).train(lambda _: None)
    return directory
