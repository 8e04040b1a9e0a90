"""The complete training of an EAGLE-3 drafter, from a target and texts to a directory."""

from __future__ import annotations

from draftwire_core.training.eagle.order import EagleOrder
from draftwire_core.training.eagle.training import EagleTrainer, EagleTraining
from draftwire_core.training.frozen_target.order import Say
from draftwire_core.training.frozen_target.preparation import Prepared, say_accuracy, train


def run(order: EagleOrder, say: Say) -> list[float]:
    """Trains, writes the drafter, and reports its quality on held-out texts. Raises TrainingError."""

    def make(given: Prepared) -> EagleTrainer:
        training = EagleTraining(
            **order.training(), ahead=order.ahead, draft_vocab=order.draft_vocab, aux_layers=order.layers_read
        )
        return EagleTrainer(given.base, given.windows, order.out, training, given.saved_as)

    trainer, given = train(order, order.ahead, say, make)
    accuracy = trainer.accuracy(given.held_out)
    say_accuracy(accuracy, say)
    return accuracy
