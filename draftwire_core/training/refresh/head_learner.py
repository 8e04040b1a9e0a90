"""An EAGLE-3 or DFlash drafter that learns from the traffic, on a copy of the target in this process."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

import torch

from draftwire_core.engine.drafters.dflash.dflash_config import DflashConfig
from draftwire_core.training.data.texts import Windows
from draftwire_core.training.dflash.training import DflashTrainer, DflashTraining, decay_of
from draftwire_core.training.distillation.trainer import DistillationOptions
from draftwire_core.training.eagle.training import EagleTrainer, EagleTraining
from draftwire_core.training.refresh.head_checkpoint import HeadCheckpoint

_TELL_EVERY = 50
"""Steps between two lines of progress."""
_WINDOW = 256
"""Tokens of a window."""


class HeadLearner:
    """A Learner (see `learner.Learner`) whose examples are texts."""

    def __init__(self, source: str, head: HeadCheckpoint, training: DistillationOptions, directory: Path):
        """source: where `head` was loaded from. directory: of the checkpoints that will be written."""
        self.source, self.tokenizer_sha256 = source, head.tokenizer.sha256
        text = head.base.config.get_text_config(decoder=True)
        self.context_length = int(getattr(text, "max_position_embeddings", None) or 2048)
        self._head = head
        self._options = training
        self._directory = directory
        config = head.network.config
        self._ahead = config.guesses if isinstance(config, DflashConfig) else head.ahead
        self._trainer: EagleTrainer | DflashTrainer
        self._weights_before: list[dict[str, torch.Tensor]] = []

    def example(self, prompt: list[int], output: list[int]) -> list[int] | None:
        """Returns the text; None if it is too short, or holds tokens that the target in this process lacks."""
        text = [*prompt, *output]
        known = max(text) < self._head.network.config.layers.vocab_size
        return text if known and len(text) >= self._ahead + 2 else None

    def learn(
        self, learned: Sequence[list[int]], held_out: Sequence[list[int]], seed: int, tell: Callable[[str], None]
    ) -> bool:
        """Trains; returns whether more tokens of held-out texts are guessed. If not, restores the weights."""
        windows, held = (Windows(texts, _WINDOW, self._ahead + 2) for texts in (learned, held_out))
        self._trainer = self._trainer_on(windows, seed)
        network = self._head.network
        self._weights_before = [
            {name: tensor.clone() for name, tensor in part.state_dict().items()}
            for part in (network.model, network.mapping)
        ]
        before = _expected(self._trainer.accuracy(held))
        self._trainer.take_steps(
            lambda progress: tell(progress.line(self._options.steps)), every=_TELL_EVERY, save_every=None
        )
        after = _expected(self._trainer.accuracy(held))
        tell(f"held-out tokens per verified step: before {before:.2f}; after {after:.2f}")
        if after <= before:
            self.go_back()
            return False
        return True

    def write(self, directory: Path) -> None:
        """Writes the drafter, in the layout of speculators, with the data type of the checkpoint it was loaded from,
        and with the target's tokenizer if there was one next to that. Raises OSError."""
        new = directory.with_name(directory.name + ".new")
        shutil.rmtree(new, ignore_errors=True)
        try:
            self._trainer.write(new)
            if self._head.has_tokenizer:
                self._head.tokenizer.save(new)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)  # a full disk must not stay full
            raise
        if directory.exists():
            shutil.rmtree(directory)
        new.replace(directory)

    def go_back(self) -> None:
        """Restores the weights from before the last training."""
        network = self._head.network
        for part, weights in zip((network.model, network.mapping), self._weights_before, strict=True):
            part.load_state_dict(weights)

    def _trainer_on(self, windows: Windows, seed: int) -> EagleTrainer | DflashTrainer:
        head, options = self._head, self._options
        common: dict[str, Any] = {
            "steps": options.steps,
            "batch": options.batch_size,
            "window": _WINDOW,
            "learning_rate": options.learning_rate,
            "seed": seed,
        }
        network = head.network
        if isinstance(network.config, DflashConfig):
            blocks = DflashTraining(**common, decay=decay_of(network.config.block_size))
            return DflashTrainer(head.base, windows, self._directory, blocks, head.saved_as, network)
        steps = EagleTraining(**common, ahead=head.ahead)
        return EagleTrainer(head.base, windows, self._directory, steps, head.saved_as, network)


def _expected(accuracy: Sequence[float]) -> float:
    """Returns the expected number of tokens that a step verifies, if one greedy chain is drafted."""
    return 1 + math.fsum(accumulate(accuracy, mul))
