"""Trainer of Medusa heads on a frozen target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from draftwire_core.engine.drafters.medusa_heads import MedusaHeads
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.training.data.texts import Windows
from draftwire_core.training.frozen_target.order import MedusaOrder, Say
from draftwire_core.training.frozen_target.preparation import Prepared, train
from draftwire_core.training.frozen_target.trainer import FrozenTargetTrainer, TrainingOptions

_TOP = 5


@dataclass(frozen=True, slots=True)
class MedusaTraining(TrainingOptions):
    """Training options of Medusa heads."""

    heads: int = 4
    layers: int = 1
    """Residual blocks per head."""


class HeadAccuracy(NamedTuple):
    """Accuracy of a head on held-out texts."""

    top1: float
    """Share of tokens that are its best guess."""
    top5: float
    """Share of tokens that are among its five best guesses."""


class MedusaTrainer(FrozenTargetTrainer):
    """Trains heads on a target's last hidden states."""

    def __init__(
        self, base: PreTrainedModel, windows: Windows, directory: Path, training: MedusaTraining, saved_as: torch.dtype
    ):
        """Prepares the training, or resumes it; see FrozenTargetTrainer. Raises CheckpointMismatch."""
        super().__init__(base, windows, directory, training, saved_as)
        self.heads = _initial(training, base.get_output_embeddings().weight)
        self._resume(self.heads)

    def write(self, directory: Path) -> None:
        """Writes the heads as they are to a directory."""
        self.heads.save(directory, str(self._base.config.name_or_path), self._saved_as)

    def accuracy(self, windows: Windows) -> list[HeadAccuracy]:
        """Returns the accuracy of each head on held-out windows."""
        right = torch.zeros(len(self.heads), 2)
        counts = torch.zeros(len(self.heads))
        with torch.no_grad(), self._computing:
            for labels in windows.labels.split(self._options.batch):
                labels = labels.to(self._base.device)
                states = self._states(labels)
                for index, head in enumerate(self.heads):
                    inputs, wanted = _pairs(states, labels, index)
                    best = head(inputs).topk(_TOP, dim=1).indices == wanted.unsqueeze(1)
                    right[index] += torch.stack([best[:, 0].sum(), best.any(1).sum()]).cpu()
                    counts[index] += len(wanted)
        return [HeadAccuracy(*row) for row in (right / counts.clamp(min=1).unsqueeze(1)).tolist()]

    def _losses(self, labels: torch.Tensor) -> list[torch.Tensor]:
        losses = []
        states = self._states(labels)
        for index, head in enumerate(self.heads):
            inputs, wanted = _pairs(states, labels, index)
            losses.append(nn.functional.cross_entropy(head(inputs), wanted))
        return losses

    def _states(self, labels: torch.Tensor) -> torch.Tensor:
        """Returns the base's last hidden states [windows, length, hidden]. No position sees the padding."""
        with torch.no_grad():
            states: torch.Tensor = self._base.base_model(labels.clamp(min=0), use_cache=False).last_hidden_state
        return states.float()


def _initial(training: MedusaTraining, output: torch.Tensor) -> MedusaHeads:
    """Returns heads that guess the target's own next token: blocks that add nothing, and the target's output layer."""
    vocab_size, hidden_size = output.shape
    heads = MedusaHeads(training.heads, training.layers, hidden_size, vocab_size)
    with torch.no_grad():
        for head in heads:
            for block in head[:-1]:
                block.linear.weight.zero_()
                block.linear.bias.zero_()
            head[-1].weight.copy_(output)
    heads.to(output.device)
    return heads


def _pairs(states: torch.Tensor, labels: torch.Tensor, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a head's inputs, [places, hidden], and the tokens it should guess, [places]."""
    ahead = index + 2
    wanted = labels[:, ahead:]
    there = wanted >= 0
    return states[:, : wanted.shape[1]][there], wanted[there]


def run(order: MedusaOrder, say: Say) -> list[HeadAccuracy]:
    """Trains, writes the heads with the target's tokenizer, and reports their quality. Raises TrainingError."""

    def make(given: Prepared) -> MedusaTrainer:
        training = MedusaTraining(**order.training(), heads=order.heads, layers=order.layers)
        return MedusaTrainer(given.base, given.windows, order.out, training, given.saved_as)

    trainer, given = train(order, order.heads, say, make)
    Tokenizer.load(given.checkpoint).save(order.out)
    accuracy = trainer.accuracy(given.held_out)
    for index, each in enumerate(accuracy, start=1):
        say(f"head {index}: {each.top1:.1%} correct on held-out text, {each.top5:.1%} within its top five")
    return accuracy
