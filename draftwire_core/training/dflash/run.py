"""The complete training of a DFlash drafter, from a target and texts to a directory."""

from __future__ import annotations

import math
from itertools import accumulate
from operator import mul

from transformers import AutoTokenizer

from draftwire_core.training.dflash.initial_network import mask_token_of
from draftwire_core.training.dflash.order import DflashOrder
from draftwire_core.training.dflash.training import DflashTrainer, DflashTraining, decay_of
from draftwire_core.training.frozen_target.order import Say
from draftwire_core.training.frozen_target.preparation import Prepared, say_accuracy, train


def run(order: DflashOrder, say: Say) -> list[float]:
    """Trains, writes the drafter, and reports its quality on held-out texts. Raises TrainingError."""

    def make(given: Prepared) -> DflashTrainer:
        mask = order.mask_token
        if mask is None:
            tokenizer = AutoTokenizer.from_pretrained(given.checkpoint.directory, local_files_only=True)
            mask = mask_token_of(tokenizer, int(given.base.get_output_embeddings().out_features))
        training = DflashTraining(
            **order.training(),
            decay=decay_of(order.block),
            block=order.block,
            layers=order.layers,
            anchors=order.anchors,
            mask_token=mask,
            draft_vocab=order.draft_vocab,
        )
        return DflashTrainer(given.base, given.windows, order.out, training, given.saved_as)

    trainer, given = train(order, order.block - 1, say, make)
    accuracy = trainer.accuracy(given.held_out)
    say_accuracy(accuracy, say)
    if len(accuracy) < order.block - 1:
        say(f"token {len(accuracy) + 1} and later ones: too few blocks guess all tokens before")
    say(f"{1 + math.fsum(accumulate(accuracy, mul)):.2f} tokens per block are expected")
    return accuracy
