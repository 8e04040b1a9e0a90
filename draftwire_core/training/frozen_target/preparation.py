"""The input of a training on a frozen target's hidden states, and how it runs from an order to a directory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from transformers import AutoConfig, PreTrainedModel

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.model.reading.model_to_train import target_to_train_on
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.training.data.texts import Windows, read_texts, windows_of
from draftwire_core.training.data.unfinished_training import CheckpointMismatch
from draftwire_core.training.frozen_target.order import Say, TrainingError, TrainingOrder
from draftwire_core.training.frozen_target.trainer import FrozenTargetTrainer

_SLOTS = 32768
_MOST_SHOWN = 200
"""Characters of a message that are shown."""

TrainerT = TypeVar("TrainerT", bound=FrozenTargetTrainer)


class Prepared(NamedTuple):
    """The target and the texts of a training."""

    checkpoint: Checkpoint
    base: PreTrainedModel
    """The target, on the order's device."""
    windows: Windows
    """Texts to learn from."""
    held_out: Windows
    saved_as: torch.dtype
    """The checkpoint's data type, which the trained tensors are written in."""


def train(
    order: TrainingOrder, ahead: int, say: Say, make: Callable[[Prepared], TrainerT]
) -> tuple[TrainerT, Prepared]:
    """Trains and writes what was trained; returns the trainer, and what it was given.

    ahead: tokens that are guessed ahead. make: makes the trainer. Raises TrainingError.
    """
    try:
        given = _prepare(order, ahead, say)
        trainer = make(given)
    except (ValueError, OSError, ModelLoadError, CheckpointMismatch) as error:
        raise TrainingError(str(error)[:_MOST_SHOWN]) from error
    trainer.run(say)
    say("measuring on held-out texts")
    return trainer, given


def say_accuracy(accuracy: list[float], say: Say) -> None:
    """Reports the shares of right guesses, token by token."""
    for index, each in enumerate(accuracy, start=1):
        say(f"token {index}: {each:.1%} are the target's best on held-out text, if those before are")


def _prepare(order: TrainingOrder, ahead: int, say: Say) -> Prepared:
    """Reads the texts, has the target continue them, and loads it to be trained on. Raises ValueError, OSError and
    ModelLoadError."""
    if order.threads is not None:
        torch.set_num_threads(order.threads)
    texts = read_texts(order.prompts)
    checkpoint = Checkpoint.find(order.model)
    windows, held_out = _windows(order, ahead, checkpoint, texts, say)
    # If the target computes in bfloat16, what is trained sees the same states as when it drafts.
    base = target_to_train_on(checkpoint, torch.device(order.device))
    saved_as = AutoConfig.from_pretrained(checkpoint.directory, local_files_only=True).dtype or torch.float32
    return Prepared(checkpoint, base, windows, held_out, saved_as)


def _windows(
    order: TrainingOrder, ahead: int, checkpoint: Checkpoint, texts: list[str], say: Say
) -> tuple[Windows, Windows]:
    """Returns the windows to train on and the held-out ones. The packed target is freed on return."""
    say(f"loading {order.model}")
    model = PackedModel.load(checkpoint, slots=_SLOTS, device=order.device)
    tokenizer = Tokenizer.load(checkpoint)
    if order.continuations:
        say(f"the target continues {len(texts)} texts {order.continuations} times")
    parts = windows_of(
        model,
        tokenizer,
        texts,
        length=order.window,
        shortest=ahead + 2,
        rounds=order.continuations,
        tokens=order.tokens,
        temperature=order.temperature,
        seed=order.seed,
        say=say,
    )
    say(f"{len(parts[0])} windows of {order.window} tokens to learn from, {len(parts[1])} held out")
    return parts
