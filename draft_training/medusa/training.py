"""Trains Medusa heads on a target that stays as it is."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from draft_training.medusa.texts import Windows
from speculative_engine.drafters.medusa_heads import MedusaHeads

_CHECKPOINT = "checkpoint.pt"
_TOP = 5
_WARM_UP = 0.05
"""Share of the steps in which the learning rate rises."""


@dataclasses.dataclass(frozen=True, slots=True)
class MedusaTraining:
    """How heads are trained."""

    heads: int = 4
    layers: int = 1
    """Residual blocks of a head."""
    steps: int = 300
    batch: int = 8
    """Windows of a step."""
    window: int = 256
    """Tokens of a window."""
    learning_rate: float = 1e-3
    """At its highest; it rises at first and falls to nothing."""
    head_decay: float = 0.8
    """How much less a head's loss counts than that of the head before it."""
    seed: int = 0


class HeadAccuracy(NamedTuple):
    """How often a head is right on texts it was not trained on."""

    top1: float
    """Its best guess is the token."""
    top5: float
    """The token is among its five best."""


class Progress(NamedTuple):
    """How far a training is."""

    step: int
    losses: list[float]
    """Cross-entropy of each head in the step."""
    seconds: float
    """Since this process began to train."""


class CheckpointMismatch(Exception):
    """The directory holds the checkpoint of another training."""


class MedusaTrainer:
    """Trains heads; goes on where an earlier process stopped if the directory holds its checkpoint."""

    def __init__(
        self, base: PreTrainedModel, windows: Windows, directory: Path, training: MedusaTraining, saved_as: torch.dtype
    ):
        """base: whose last hidden states the heads see; it is not changed. saved_as: type of the written heads.

        Raises CheckpointMismatch.
        """
        self._base = base.eval().requires_grad_(False)
        reduced = base.dtype in (torch.bfloat16, torch.float16)
        self._computing = torch.autocast(base.device.type, base.dtype if reduced else None, enabled=reduced)
        """Weights of the heads are float32; products are as the base's own."""
        self._windows = windows
        self._directory = directory
        self._training = training
        self._saved_as = saved_as
        output = base.get_output_embeddings().weight
        self.heads = _initial(training, output)
        self._optimizer = torch.optim.AdamW(self.heads.parameters(), lr=training.learning_rate, weight_decay=0.0)
        self._identity = _identity(training, windows, output)
        self.step = self._resume()
        """Steps taken."""

    def train(self, report: Callable[[Progress], None], *, every: int = 10, save_every: int = 100) -> None:
        """Takes the remaining steps, and writes the heads.

        every: steps between two reports. save_every: steps between two checkpoints.
        """
        started = time.perf_counter()
        training = self._training
        while self.step < training.steps:
            for group in self._optimizer.param_groups:
                group["lr"] = training.learning_rate * _rate(self.step, training.steps)
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
                self._save_checkpoint()
        self.heads.save(self._directory, str(self._base.config.name_or_path), self._saved_as)
        (self._directory / _CHECKPOINT).unlink(missing_ok=True)

    def accuracy(self, windows: Windows) -> list[HeadAccuracy]:
        """How often each head is right in windows it was not trained on."""
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
        """The base's last hidden states [windows, length, hidden]. What fills a window up is seen by nothing."""
        with torch.no_grad():
            states: torch.Tensor = self._base.base_model(labels.clamp(min=0), use_cache=False).last_hidden_state
        return states.float()

    def _save_checkpoint(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        unfinished = self._directory / f"{_CHECKPOINT}.part"
        state = {
            "identity": self._identity,
            "step": self.step,
            "heads": self.heads.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        torch.save(state, unfinished)
        unfinished.replace(self._directory / _CHECKPOINT)

    def _resume(self) -> int:
        path = self._directory / _CHECKPOINT
        if not path.exists():
            return 0
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if state["identity"] != self._identity:
            raise CheckpointMismatch(
                f"{path} is that of a training with other settings, texts or target: go on with those, or remove it"
            )
        self.heads.load_state_dict(state["heads"])
        self._optimizer.load_state_dict(state["optimizer"])
        step: int = state["step"]
        return step


def _initial(training: MedusaTraining, output: torch.Tensor) -> MedusaHeads:
    """Heads that guess what the target itself guesses next: blocks that add nothing, and the target's own output."""
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
    """What a head sees, [places, hidden], and the tokens that it is to guess, [places]."""
    ahead = index + 2
    wanted = labels[:, ahead:]
    there = wanted >= 0
    return states[:, : wanted.shape[1]][there], wanted[there]


def _rate(step: int, steps: int) -> float:
    """Share of the highest learning rate that a step has."""
    warm_up = max(1.0, _WARM_UP * steps)
    return min((step + 1) / warm_up, 0.5 + 0.5 * math.cos(math.pi * step / steps))


def _identity(training: MedusaTraining, windows: Windows, output: torch.Tensor) -> str:
    """Differs where two trainings would."""
    parts = hashlib.sha256(repr(dataclasses.astuple(training)).encode())
    for tensor in (windows.labels, output.detach().float().cpu()):
        parts.update(tensor.numpy().tobytes())
    return parts.hexdigest()
