"""Trains a draft model on examples, step by step, and goes on exactly where it stopped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from draft_training.data.batch import make_batch
from draft_training.data.example import Example
from draft_training.distillation.divergence import Divergence, divergence, draft_outcomes, target_outcomes


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """What decides, with the draft model and the examples, the weights that come out."""

    steps: int = 400
    """Steps of the optimizer in all."""
    batch_size: int = 8
    """Examples of a step."""
    learning_rate: float = 5e-4
    """Highest learning rate: after the warm-up, from where it falls to zero by a cosine."""
    warmup: int = 20
    """Steps in which the learning rate rises."""
    divergence: Divergence = "forward-kl"
    """What is made smaller."""
    seed: int = 0
    """Decides the order of the examples."""


class TrainingStateError(Exception):
    """A state cannot be gone on from; the message says why."""


class Trainer:
    """A model, its optimizer, and how many steps they have made."""

    def __init__(self, model: nn.Module, options: TrainingOptions, *, device: str = "cpu"):
        self.model = model
        self.options = options
        self.steps = 0
        """Steps made."""
        self._device = device
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)

    @property
    def done(self) -> bool:
        """Whether all steps are made."""
        return self.steps >= self.options.steps

    def step(self, examples: Callable[[int], Example], count: int) -> float:
        """One step on the next examples of `count`, which `examples` gives by index. Returns the mean divergence."""
        chosen = batch_indices(self.steps, self.options.batch_size, count, self.options.seed)
        return self.learn([examples(index) for index in chosen])

    def learn(self, examples: Sequence[Example]) -> float:
        """One step on given examples. Returns their mean divergence before it."""
        self.model.train()
        batch = make_batch(examples, self._device)
        draft = draft_outcomes(batch.logits(self.model), batch.token_ids)
        loss = divergence(self.options.divergence, target_outcomes(batch.log_probs), draft).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self.steps, self.options)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return float(loss.item())

    def save(self, path: Path, facts: dict[str, Any]) -> None:
        """Writes all that going on needs, and facts of the caller's, which have to be the same then."""
        state = {
            "steps": self.steps,
            "options": asdict(self.options),
            "facts": facts,
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        new = path.with_name(path.name + ".new")
        torch.save(state, new)
        new.replace(path)

    def load(self, path: Path, facts: dict[str, Any]) -> None:
        """Goes on from what `save` wrote. Raises TrainingStateError if it was another training."""
        state = torch.load(path, map_location=self._device, weights_only=True)
        wanted = {**asdict(self.options), **facts}
        found = {**state["options"], **state["facts"]}
        differing = sorted(key for key in {*wanted, *found} if wanted.get(key) != found.get(key))
        if differing:
            told = ", ".join(f"{key} {found.get(key)!r}, now {wanted.get(key)!r}" for key in differing)
            raise TrainingStateError(f"{path} is of another training: {told}; take another directory")
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]


def learning_rate(step: int, options: TrainingOptions) -> float:
    """The learning rate of a step, counted from 0."""
    rising = min(1.0, (step + 1) / max(1, options.warmup))
    progress = min(1.0, max(0.0, (step - options.warmup) / max(1, options.steps - options.warmup)))
    return options.learning_rate * rising * (1 + math.cos(math.pi * progress)) / 2


def batch_indices(step: int, size: int, count: int, seed: int) -> list[int]:
    """The examples of a step: all are taken in turn, in another random order each time. A function of its arguments
    alone, so that a training goes on as if it had not been interrupted."""
    found: list[int] = []
    for place in range(step * size, (step + 1) * size):
        epoch, index = divmod(place, count)
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        found.append(int(torch.randperm(count, generator=generator)[index]))
    return found
