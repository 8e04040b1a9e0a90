"""The complete training of a DFlash drafter, from a target and texts to a directory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from transformers import AutoTokenizer

from draft_training.data.unfinished_training import CheckpointMismatch
from draft_training.dflash.initial_network import mask_token_of
from draft_training.dflash.training import DflashTrainer, DflashTraining, decay_of
from draft_training.frozen_target.order import MOST_SHOWN, Say, TrainingError, TrainingOrder, prepare
from speculative_engine.checkpoint.checkpoint import ModelLoadError


@dataclass(frozen=True, slots=True)
class DflashOrder(TrainingOrder):
    """Options of a training; see `draftwire train dflash`."""

    block: int = 8
    layers: int = 2
    anchors: int = 32
    draft_vocab: int = 0
    mask_token: int | None = None


def run(order: DflashOrder, say: Say) -> list[float]:
    """Trains, writes the drafter, and reports its quality on held-out texts. Raises TrainingError."""
    try:
        given = prepare(order, order.block - 1, say)
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
        trainer = DflashTrainer(given.base, given.windows, order.out, training, given.saved_as)
    except (ValueError, OSError, ModelLoadError, CheckpointMismatch) as error:
        raise TrainingError(str(error)[:MOST_SHOWN]) from error
    trainer.run(say)
    accuracy = trainer.accuracy(given.held_out)
    for index, each in enumerate(accuracy, start=1):
        say(f"token {index}: {each:.1%} are the target's best on held-out text, if those before are")
    if len(accuracy) < order.block - 1:
        say(f"token {len(accuracy) + 1} and later ones: too few blocks guess all tokens before")
    say(f"{1 + math.fsum(accumulate(accuracy, mul)):.2f} tokens per block are expected")
    return accuracy
