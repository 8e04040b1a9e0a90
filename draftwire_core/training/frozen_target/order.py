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
