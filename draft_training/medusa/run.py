"""The complete training of Medusa heads, from a target and texts to a directory of heads."""

from __future__ import annotations

from dataclasses import dataclass

from draft_training.data.unfinished_training import CheckpointMismatch
from draft_training.frozen_target.order import MOST_SHOWN, Say, TrainingError, TrainingOrder, prepare
from draft_training.medusa.training import HeadAccuracy, MedusaTrainer, MedusaTraining
from speculative_engine.checkpoint.checkpoint import ModelLoadError
from speculative_engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class MedusaOrder(TrainingOrder):
    """Options of a training; see `draftwire train medusa`."""

    heads: int = 4
    layers: int = 1


def run(order: MedusaOrder, say: Say) -> list[HeadAccuracy]:
    """Trains, writes the heads with the target's tokenizer, and reports their quality. Raises TrainingError."""
    try:
        given = prepare(order, order.heads, say)
        training = MedusaTraining(**order.training(), heads=order.heads, layers=order.layers)
        trainer = MedusaTrainer(given.base, given.windows, order.out, training, given.saved_as)
    except (ValueError, OSError, ModelLoadError, CheckpointMismatch) as error:
        raise TrainingError(str(error)[:MOST_SHOWN]) from error
    trainer.run(say)
    Tokenizer.load(given.checkpoint).save(order.out)
    accuracy = trainer.accuracy(given.held_out)
    for index, each in enumerate(accuracy, start=1):
        say(f"head {index}: {each.top1:.1%} correct on held-out text, {each.top5:.1%} within its top five")
    return accuracy
