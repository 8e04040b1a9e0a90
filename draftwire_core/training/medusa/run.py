"""The complete training of Medusa heads, from a target and texts to a directory of heads."""

from __future__ import annotations

from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.training.frozen_target.order import Say
from draftwire_core.training.frozen_target.preparation import Prepared, train
from draftwire_core.training.medusa.order import MedusaOrder
from draftwire_core.training.medusa.training import HeadAccuracy, MedusaTrainer, MedusaTraining


def run(order: MedusaOrder, say: Say) -> list[HeadAccuracy]:
    """Trains, writes the heads with the target's tokenizer, and reports their quality. Raises TrainingError."""

    def make(given: Prepared) -> MedusaTrainer:
        training = MedusaTraining(**order.training(), heads=order.heads, layers=order.layers)
        return MedusaTrainer(given.base, given.windows, order.out, training, given.saved_as)

    trainer, given = train(order, order.heads, say, make)
    Tokenizer.load(given.checkpoint).save(order.out)
    accuracy = trainer.accuracy(given.held_out)
    for index, each in enumerate(accuracy, start=1):
        say(f"head {index}: {each.top1:.1%} correct on held-out text, {each.top5:.1%} within its top five")
    return accuracy
