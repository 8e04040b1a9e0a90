"""Trainer of a draft model on examples, which resumes exactly where it stopped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from draftwire_core.training.data.example import Example, make_batch
from draftwire_core.training.data.unfinished_training import is_whole, write_whole
from draftwire_core.training.distillation.divergence import Divergence, divergence, draft_outcomes, target_outcomes


@dataclass(frozen=True, slots=True)
class DistillationOptions:
    """Training options. With the draft model and the examples they determine the resulting weights."""

    steps: int = 400
    """Total number of optimizer steps."""
    batch_size: int = 8
    """Examples per step."""
    learning_rate: float = 5e-4
    """Peak learning rate, reached after the warm-up; a cosine decays it to zero."""
    warmup: int = 20
    """Steps in which the learning rate rises."""
    divergence: Divergence = "forward-kl"
    """Divergence to minimize."""
    seed: int = 0
    """Seed of the order of the examples."""


class TrainingStateError(Exception):
    """A training state cannot be resumed; the message has the reason."""


class Trainer:
    """A model, its optimizer, and the number of steps taken."""

    def __init__(self, model: nn.Module, options: DistillationOptions, *, device: str = "cpu"):
        self.model = model
        self.options = options
        self.steps = 0
        """Steps taken."""
        self._device = device
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)

    @property
    def done(self) -> bool:
        """Whether all steps were taken."""
        return self.steps >= self.options.steps

    def step(self, examples: Callable[[int], Example], count: int) -> float:
        """Takes a step on the next of `count` examples, fetched by index. Returns the mean divergence."""
        chosen = batch_indices(self.steps, self.options.batch_size, count, self.options.seed)
        return self.learn([examples(index) for index in chosen])

    def learn(self, examples: Sequence[Example]) -> float:
        """Takes a step on given examples. Returns their mean divergence before the step."""
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
        """Writes the state needed to resume, and facts of the caller's that must be equal then. Raises OSError."""
        state = {
            "steps": self.steps,
            "options": asdict(self.options),
            "facts": facts,
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        write_whole(path, state)

    def load(self, path: Path, facts: dict[str, Any]) -> bool:
        """Resumes from a state that `save` wrote; returns False for a damaged one. Raises TrainingStateError if it
        belongs to another training."""
        if not is_whole(path):
            return False
        state = torch.load(path, map_location=self._device, weights_only=True)
        wanted = {**asdict(self.options), **facts}
        found = {**state["options"], **state["facts"]}
        differing = sorted(key for key in {*wanted, *found} if wanted.get(key) != found.get(key))
        if differing:
            told = ", ".join(f"{key} {found.get(key)!r}, now {wanted.get(key)!r}" for key in differing)
            raise TrainingStateError(f"{path} belongs to another training: {told}; use another directory")
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]
        return True


def learning_rate(step: int, options: DistillationOptions) -> float:
    """Returns the learning rate of a step, counted from 0."""
    rising = min(1.0, (step + 1) / max(1, options.warmup))
    progress = min(1.0, max(0.0, (step - options.warmup) / max(1, options.steps - options.warmup)))
    return options.learning_rate * rising * (1 + math.cos(math.pi * progress)) / 2


def batch_indices(step: int, size: int, count: int, seed: int) -> list[int]:
    """Returns the examples of a step. Each epoch takes all examples in a new random order. The result depends only on
    the arguments, so that a resumed training continues as if it had not been interrupted."""
    found: list[int] = []
    for place in range(step * size, (step + 1) * size):
        epoch, index = divmod(place, count)
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        found.append(int(torch.randperm(count, generator=generator)[index]))
    return found
