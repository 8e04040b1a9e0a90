"""The complete training of an EAGLE-3 drafter, from a target and texts to a directory."""

from __future__ import annotations

from dataclasses import dataclass

from draft_training.data.unfinished_training import CheckpointMismatch
from draft_training.eagle.training import EagleTrainer, EagleTraining
from draft_training.frozen_target.order import MOST_SHOWN, Say, TrainingError, TrainingOrder, prepare
from speculative_engine.checkpoint.checkpoint import ModelLoadError


@dataclass(frozen=True, slots=True)
class EagleOrder(TrainingOrder):
    """Options of a training; see `draftwire train eagle3`."""

    ahead: int = 4
    draft_vocab: int = 0
    aux_layers: tuple[int, ...] = ()


def run(order: EagleOrder, say: Say) -> list[float]:
    """Trains, writes the drafter, and reports its quality on held-out texts. Raises TrainingError."""
    try:
        given = prepare(order, order.ahead, say)
        training = EagleTraining(
            **order.training(), ahead=order.ahead, draft_vocab=order.draft_vocab, aux_layers=order.aux_layers
        )
        trainer = EagleTrainer(given.base, given.windows, order.out, training, given.saved_as)
    except (ValueError, OSError, ModelLoadError, CheckpointMismatch) as error:
        raise TrainingError(str(error)[:MOST_SHOWN]) from error
    trainer.run(say)
    accuracy = trainer.accuracy(given.held_out)
    for index, each in enumerate(accuracy, start=1):
        say(f"token {index}: {each:.1%} are the target's best on held-out text, if those before are")
    return accuracy
