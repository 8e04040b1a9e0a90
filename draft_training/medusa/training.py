"""Trainer of Medusa heads on a frozen target."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from draft_training.data.texts import Windows
from draft_training.data.unfinished_training import UnfinishedTraining, identity_of, rate
from speculative_engine.drafters.medusa_heads import MedusaHeads

_TOP = 5


@dataclasses.dataclass(frozen=True, slots=True)
class MedusaTraining:
    """Training options of Medusa heads."""

    heads: int = 4
    layers: int = 1
    """Residual blocks per head."""
    steps: int = 300
    batch: int = 8
    """Windows of a step."""
    window: int = 256
    """Tokens of a window."""
    learning_rate: float = 1e-3
    """Peak learning rate; it rises during the warm-up and decays to zero."""
    head_decay: float = 0.8
    """Weight of a head's loss relative to that of the previous head."""
    seed: int = 0


class HeadAccuracy(NamedTuple):
    """Accuracy of a head on held-out texts."""

    top1: float
    """Share of tokens that are its best guess."""
    top5: float
    """Share of tokens that are among its five best guesses."""


class Progress(NamedTuple):
    """Progress of a training."""

    step: int
    losses: list[float]
    """Cross-entropy of each head in the step."""
    seconds: float
    """Seconds since this process began to train."""


class MedusaTrainer:
    """Trains heads; resumes from the checkpoint of an earlier process if the directory holds one."""

    def __init__(
        self, base: PreTrainedModel, windows: Windows, directory: Path, training: MedusaTraining, saved_as: torch.dtype
    ):
        """Prepares the training, or resumes it.

        base: model whose last hidden states the heads see; it is not changed. saved_as: data type of the written heads.
        Raises CheckpointMismatch.
        """
        self._base = base.eval().requires_grad_(False)
        reduced = base.dtype in (torch.bfloat16, torch.float16)
        self._computing = torch.autocast(base.device.type, base.dtype if reduced else None, enabled=reduced)
        """The heads' weights are float32; their products are computed in the base's data type."""
        self._windows = windows
        self._directory = directory
        self._training = training
        self._saved_as = saved_as
        output = base.get_output_embeddings().weight
        self.heads = _initial(training, output)
        self._optimizer = torch.optim.AdamW(self.heads.parameters(), lr=training.learning_rate, weight_decay=0.0)
        self._unfinished = UnfinishedTraining(
            directory, identity_of(training, windows, output), self.heads, self._optimizer
        )
        self.step = self._unfinished.resume()
        """Steps taken."""

    def train(self, report: Callable[[Progress], None], *, every: int = 10, save_every: int = 100) -> None:
        """Takes the remaining steps, and writes the heads.

        every: steps between two reports. save_every: steps between two checkpoints.
        """
        started = time.perf_counter()
        training = self._training
        while self.step < training.steps:
            for group in self._optimizer.param_groups:
                group["lr"] = training.learning_rate * rate(self.step, training.steps)
            labels = self._windows.batch(self.step, training.batch, training.seed).to(self._base.device)
            losses = self._losses(labels)
            total = sum(training.head_decay**index * loss for index, loss in enumerate(losses))
            self._optimizer.zero_grad(set_to_none=True)
            total.backward()
            self._optimizer.step()
            self.step += 1
            if self.step % every == 0 or self.step == training.steps:
                report(Progress(self.step, [float(loss.detach()) for loss in losses], time.perf_counter() - started))
            if self.step % save_every == 0 and self.step < training.steps:
                self._unfinished.save(self.step)
        self.heads.save(self._directory, str(self._base.config.name_or_path), self._saved_as)
        self._unfinished.end()

    def accuracy(self, windows: Windows) -> list[HeadAccuracy]:
        """Returns the accuracy of each head on held-out windows."""
        right = torch.zeros(len(self.heads), 2)
        counts = torch.zeros(len(self.heads))
        with torch.no_grad(), self._computing:
            for labels in windows.labels.split(self._training.batch):
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
        with self._computing:
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
