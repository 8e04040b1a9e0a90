"""Trains an EAGLE-3 drafter within seconds, on texts that a tiny target generated."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from transformers import PreTrainedModel

from draftwire_core.training.data.texts import Windows
from draftwire_core.training.eagle.training import EagleTrainer, EagleTraining
from tests.harness.engine.engines import GREEDY, engine_of, generate, packed, random_tokens, specs_of, tiny_model


def train_eagle(
    base: PreTrainedModel,
    documents: Sequence[Sequence[int]],
    directory: Path,
    *,
    steps: int = 60,
    ahead: int = 3,
    draft_vocab: int = 0,
) -> Path:
    """Trains a drafter until it predicts the documents fairly well; returns its directory."""
    training = EagleTraining(ahead=ahead, steps=steps, batch=4, window=96, learning_rate=1e-2, draft_vocab=draft_vocab)
    EagleTrainer(base, Windows(documents, 96, 5), directory, training, torch.float32).train(lambda _: None)
    return directory


SPECS = specs_of([random_tokens(length, seed=length) for length in (9, 3, 40, 20)], 40, GREEDY)
"""Sequences of `tiny_model("Llama")` that drafters are tried on."""


@cache
def plain_tokens() -> dict[int, list[int]]:
    """Returns the plain output of each sequence of `SPECS`."""
    return generate(engine_of(packed(tiny_model("Llama"), 1000)), SPECS).tokens


def documents() -> list[list[int]]:
    """Returns the sequences of `SPECS` with their outputs, to train on."""
    return [[*spec.tokens, *plain_tokens()[spec.sequence_id]] for spec in SPECS]
