"""The order of a training on a frozen target's hidden states, and what a training is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from draft_training.data.texts import Windows, read_texts, windows_of
from speculative_engine.checkpoint.checkpoint import Checkpoint
from speculative_engine.model.packed_model import PackedModel
from speculative_engine.model.reading.read_model import resolve_dtype
from speculative_engine.text.tokenizer import Tokenizer

_SLOTS = 32768

MOST_SHOWN = 200
"""Characters of a message that are shown."""

Say = Callable[[str], None]


class TrainingError(Exception):
    """The training cannot begin or continue; the message has the reason."""


@dataclass(frozen=True, slots=True)
class TrainingOrder:
    """Options that all such trainings have; see `draftwire train`."""

    model: str
    prompts: tuple[Path, ...]
    out: Path
    steps: int = 300
    batch: int = 8
    window: int = 256
    learning_rate: float = 1e-3
    continuations: int = 1
    tokens: int = 200
    temperature: float = 0.8
    seed: int = 0
    threads: int | None = None
    device: str = "cpu"

    def training(self) -> dict[str, Any]:
        """The fields of TrainingOptions that an order has."""
        return {name: getattr(self, name) for name in ("steps", "batch", "window", "learning_rate", "seed")}


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


def prepare(order: TrainingOrder, ahead: int, say: Say) -> Prepared:
    """Reads the texts, has the target continue them, and loads it to be trained on.

    ahead: tokens that are guessed ahead. Raises ValueError, OSError and ModelLoadError.
    """
    if order.threads is not None:
        torch.set_num_threads(order.threads)
    texts = read_texts(order.prompts)
    checkpoint = Checkpoint.find(order.model)
    windows, held_out = _windows(order, ahead, checkpoint, texts, say)
    # If the target computes in bfloat16, what is trained sees the same states as when it drafts.
    device = torch.device(order.device)
    base = AutoModelForCausalLM.from_pretrained(
        checkpoint.directory, dtype=resolve_dtype("auto", device), local_files_only=True
    ).to(device)
    saved_as = AutoConfig.from_pretrained(checkpoint.directory, local_files_only=True).dtype or torch.float32
    return Prepared(checkpoint, base, windows, held_out, saved_as)


def _windows(
    order: TrainingOrder, ahead: int, checkpoint: Checkpoint, texts: list[str], say: Say
) -> tuple[Windows, Windows]:
    """Returns the windows to train on and the held-out ones. The packed target is freed on return."""
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
    )
    say(f"{len(parts[0])} windows of {order.window} tokens to learn from, {len(parts[1])} held out")
    return parts
