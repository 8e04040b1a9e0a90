"""The order of a training on a frozen target's hidden states: its fields are the options of the command.

Needs no torch, so that commands show their help without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

Say = Callable[[str], None]
Device = Annotated[
    str, typer.Option(help="Device to train on: auto (a GPU if torch can use one), cpu, cuda or cuda:N.")
]


class TrainingError(Exception):
    """The training cannot begin or continue; the message has the reason."""


@dataclass(frozen=True, slots=True)
class TrainingOrder:
    """Options that all such trainings have; see `draftwire train`."""

    model: Annotated[str, typer.Option(metavar="DIR", help="The target: a directory or a hub id. It is not changed.")]
    prompts: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Texts to learn from: JSON lines with `prompt` or `text`, or a text file; may be repeated.",
        ),
    ]
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the drafter. An interrupted training resumes there.")
    ]
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 300
    batch: Annotated[int, typer.Option(min=1, help="Windows per step.")] = 8
    window: Annotated[int, typer.Option(min=16, help="Tokens per window.")] = 256
    learning_rate: Annotated[float, typer.Option(min=0.0, help="Highest learning rate.")] = 1e-3
    continuations: Annotated[
        int,
        typer.Option(min=0, help="How often the target continues each text; 0 trains on the texts alone."),
    ] = 1
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a continuation.")] = 200
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature of the continuations.")] = 0.8
    seed: Annotated[int, typer.Option(min=0, help="Seed of the continuations and of the training.")] = 0
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; by default as many as torch finds.")] = None
    device: Device = "auto"
    """The command replaces `auto` before the training begins."""

    def training(self) -> dict[str, Any]:
        """The fields of TrainingOptions that an order has."""
        return {name: getattr(self, name) for name in ("steps", "batch", "window", "learning_rate", "seed")}


DraftVocabulary = Annotated[
    int, typer.Option(min=0, help="Draft only this many of the texts' most frequent tokens; 0 for all.")
]


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


@dataclass(frozen=True, slots=True)
class EagleOrder(TrainingOrder):
    """Options of a training; see `draftwire train eagle3`."""

    ahead: Annotated[int, typer.Option(min=1, max=16, help="Steps of drafting to learn: tokens guessed ahead.")] = 4
    draft_vocab: DraftVocabulary = 0
    aux_layers: Annotated[
        str,
        typer.Option(
            metavar="N,N,...",
            help="Layers of the target whose inputs the drafter reads; their number stands for the last one's output, "
            "which MTP layers read. By default the usual ones of EAGLE-3.",
        ),
    ] = ""

    def __post_init__(self) -> None:
        """Raises TrainingError for layers that are no numbers."""
        _ = self.layers_read

    @property
    def layers_read(self) -> tuple[int, ...]:
        """Indices of the layers of `aux_layers`."""
        try:
            return tuple(int(each) for each in self.aux_layers.split(",") if self.aux_layers)
        except ValueError:
            raise TrainingError(
                f"--aux-layers must be numbers with commas between them, got {self.aux_layers!r}"
            ) from None


@dataclass(frozen=True, slots=True)
class MedusaOrder(TrainingOrder):
    """Options of a training; see `draftwire train medusa`."""

    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the heads. An interrupted training resumes there.")
    ]
    heads: Annotated[int, typer.Option(min=1, max=64, help="Number of heads: tokens guessed ahead.")] = 4
    layers: Annotated[int, typer.Option(min=0, max=16, help="Residual blocks per head.")] = 1
