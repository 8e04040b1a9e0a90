"""The order of a training of a DFlash drafter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from draftwire_core.training.frozen_target.order import DraftVocabulary, TrainingOrder


@dataclass(frozen=True, slots=True)
class DflashOrder(TrainingOrder):
    """Options of a training; see `draftwire train dflash`."""

    block: Annotated[
        int, typer.Option(min=2, max=128, help="Size of a block: one token more than it guesses ahead.")
    ] = 8
    layers: Annotated[int, typer.Option(min=1, max=16, help="Layers of the drafter.")] = 2
    anchors: Annotated[int, typer.Option(min=1, help="Random places per window and step at which to guess.")] = 32
    draft_vocab: DraftVocabulary = 0
    mask_token: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Id of the token that stands for one to be guessed; by default the tokenizer's mask, an unused id, "
            "its padding or its end of text.",
        ),
    ] = None
