"""The complete training of an EAGLE-3 drafter, from a target and texts to a directory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from draft_training.data.texts import Windows, read_texts, windows_of
from draft_training.data.unfinished_training import CheckpointMismatch
from draft_training.eagle.training import EagleTrainer, EagleTraining, Progress
from speculative_engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from speculative_engine.model.packed_model import PackedModel
from speculative_engine.model.read_model import resolve_dtype
from speculative_engine.text.tokenizer import Tokenizer

_SLOTS = 32768
_MOST_SHOWN = 200


class EagleTrainingError(Exception):
    """The training cannot begin or continue; the message has the reason."""


@dataclass(frozen=True, slots=True)
class EagleOrder:
    """Options of a training; see `draftwire train eagle3`."""

    model: str
    prompts: tuple[Path, ...]
    out: Path
    ahead: int = 4
    draft_vocab: int = 0
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


def run(order: EagleOrder, say: Callable[[str], None]) -> list[float]:
    """Trains, writes the drafter, and reports its quality on held-out texts. Raises EagleTrainingError."""
    if order.threads is not None:
        torch.set_num_threads(order.threads)
    try:
        texts = read_texts(order.prompts)
        checkpoint = Checkpoint.find(order.model)
        windows, held_out = _windows(order, checkpoint, texts, say)
        # If the target computes in bfloat16, the drafter learns from the same states as it drafts from.
        device = torch.device(order.device)
        base = AutoModelForCausalLM.from_pretrained(
            checkpoint.directory, dtype=resolve_dtype("auto", device), local_files_only=True
        ).to(device)
        training = EagleTraining(
            ahead=order.ahead,
            draft_vocab=order.draft_vocab,
            steps=order.steps,
            batch=order.batch,
            window=order.window,
            learning_rate=order.learning_rate,
            seed=order.seed,
        )
        saved_as = AutoConfig.from_pretrained(checkpoint.directory, local_files_only=True).dtype or torch.float32
        trainer = EagleTrainer(base, windows, order.out, training, saved_as)
    except (ValueError, OSError, ModelLoadError, CheckpointMismatch) as error:
        raise EagleTrainingError(str(error)[:_MOST_SHOWN]) from error
    if trainer.step:
        say(f"resuming after step {trainer.step}")
    trainer.train(lambda progress: say(_line(progress, order.steps)))
    accuracy = trainer.accuracy(held_out)
    for index, each in enumerate(accuracy, start=1):
        say(f"token {index}: {each:.1%} are the target's best on held-out text, if those before are")
    return accuracy


def _windows(
    order: EagleOrder, checkpoint: Checkpoint, texts: list[str], say: Callable[[str], None]
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
        shortest=order.ahead + 2,
        rounds=order.continuations,
        tokens=order.tokens,
        temperature=order.temperature,
        seed=order.seed,
    )
    say(f"{len(parts[0])} windows of {order.window} tokens to learn from, {len(parts[1])} held out")
    return parts


def _line(progress: Progress, steps: int) -> str:
    losses = " ".join(f"{loss:.3f}" for loss in progress.losses)
    return f"step {progress.step} of {steps}: losses {losses}, {progress.seconds:.0f} s"
