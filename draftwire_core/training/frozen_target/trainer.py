"""The loop of a training on a frozen target's hidden states, which an interrupted process can resume."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from draftwire_core.training.data.texts import Windows
from draftwire_core.training.data.unfinished_training import UnfinishedTraining, identity_of, rate
from draftwire_tools.progress import Pace


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Options that all such trainings have."""

    steps: int = 300
    batch: int = 8
    """Windows of a step."""
    window: int = 256
    """Tokens of a window."""
    learning_rate: float = 1e-3
    """Peak learning rate; it rises during the warm-up and decays to zero."""
    decay: float = 0.8
    """Weight of the loss of a token ahead relative to that of the token before it."""
    seed: int = 0


class Progress(NamedTuple):
    """Progress of a training."""

    step: int
    losses: list[float]
    """Cross-entropy of each token ahead in the step."""
    pace: str
    """Time since this process began to train, and an estimate of the rest."""

    def line(self, steps: int) -> str:
        """The progress in one line. steps: of the whole training."""
        losses = " ".join(f"{loss:.3f}" for loss in self.losses)
        return f"step {self.step} of {steps}: losses {losses} ({self.pace})"


class FrozenTargetTrainer(ABC):
    """Trains a model; resumes from the checkpoint of an earlier process if the directory holds one."""

    def __init__(
        self, base: PreTrainedModel, windows: Windows, directory: Path, options: TrainingOptions, saved_as: torch.dtype
    ):
        """base: the target; it is not changed. saved_as: data type of the written tensors."""
        self._base: Any = base.eval().requires_grad_(False)
        reduced = base.dtype in (torch.bfloat16, torch.float16)
        self._computing = torch.autocast(base.device.type, base.dtype if reduced else None, enabled=reduced)
        """The trained weights are float32; their products are computed in the base's data type."""
        self._windows = windows
        self._directory = directory
        self._options = options
        self._saved_as = saved_as
        self.step = 0
        """Steps taken."""

    def _resume(self, trained: nn.Module) -> None:
        """Begins or resumes the training of what needs gradients in `trained`. Raises CheckpointMismatch."""
        self.trained = trained
        weights = [weight for weight in trained.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(weights, lr=self._options.learning_rate, weight_decay=0.0)
        identity = identity_of(self._options, self._windows, self._base.get_output_embeddings().weight)
        self._unfinished = UnfinishedTraining(self._directory, identity, trained, self._optimizer)
        self.step = self._unfinished.resume()

    def run(self, say: Callable[[str], None]) -> None:
        """Trains, and reports in lines of text."""
        if self.step:
            say(f"resuming after step {self.step}")
        if self._unfinished.damaged:
            say("the checkpoint is damaged: training begins again")
        self.train(lambda progress: say(progress.line(self._options.steps)))

    def train(self, report: Callable[[Progress], None], *, every: int = 10, save_every: int = 100) -> None:
        """Takes the remaining steps, and writes what was trained.

        every: steps between two reports. save_every: steps between two checkpoints.
        """
        self.take_steps(report, every=every, save_every=save_every)
        self.save()
        self._unfinished.end()

    def take_steps(self, report: Callable[[Progress], None], *, every: int, save_every: int | None) -> None:
        """Takes the remaining steps; see `train`. Without `save_every`, writes nothing."""
        pace, first = Pace(), self.step
        options = self._options
        while self.step < options.steps:
            for group in self._optimizer.param_groups:
                group["lr"] = options.learning_rate * rate(self.step, options.steps)
            labels = self._windows.batch(self.step, options.batch, options.seed).to(self._base.device)
            with self._computing:
                losses = self._losses(labels)
            total = torch.stack([options.decay**index * loss for index, loss in enumerate(losses)]).sum()
            self._optimizer.zero_grad(set_to_none=True)
            total.backward()
            self._optimizer.step()
            self.step += 1
            if self.step % every == 0 or self.step == options.steps:
                done = (self.step - first) / (options.steps - first)
                report(Progress(self.step, [float(loss.detach()) for loss in losses], pace.of(done)))
            if save_every is not None and self.step % save_every == 0 and self.step < options.steps:
                self._unfinished.save(self.step)

    def save(self) -> None:
        """Writes what was trained as it is."""
        self.write(self._directory)

    @abstractmethod
    def write(self, directory: Path) -> None:
        """Writes what was trained as it is to a directory."""

    @abstractmethod
    def _losses(self, labels: torch.Tensor) -> list[torch.Tensor]:
        """The loss of each token ahead. labels: int64 [windows, length], negative for padding."""
