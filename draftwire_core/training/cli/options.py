"""Options shared by the training commands, and the check of their requirements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from draftwire.cli.failure import check_installed
from draftwire_tools.progress import LogLines

Draft = Annotated[str, typer.Option(metavar="DIR", help="The draft model to start from: a directory or a hub id.")]
Top = Annotated[int, typer.Option(min=1, max=256, help="Likeliest tokens to learn from at each position.")]
LearningRate = Annotated[float, typer.Option(min=0.0, help="Highest learning rate.")]
Seed = Annotated[int, typer.Option(help="Seed for the order of the examples.")]
Threads = Annotated[int, typer.Option(min=0, help="CPU threads; 0 leaves the choice to torch.")]
Rounds = Annotated[int, typer.Option(min=0, help="Rounds to run; 0 runs until interrupted.")]
Share = Annotated[
    str, typer.Option(metavar="SHARE", help="Share of the requests that a draft on trial gets: 50% or 0.5.")
]
TrialRequests = Annotated[int, typer.Option(min=1, help="Requests of each of the two drafts needed to decide.")]
TrialSeconds = Annotated[
    float, typer.Option(min=1.0, help="Longest trial, in seconds; then an undecided draft is withdrawn.")
]

NEEDED = ("torch", "transformers")


def check_training_installed() -> None:
    """Checks that models can be trained here.

    Raises:
        Failure: a package is not installed.
    """
    check_installed("training", NEEDED)


def show_downloads(tell: Callable[[str], None]) -> None:
    """Writes lines while models are downloaded from the hub."""
    LogLines(tell, "draftwire_core.engine.checkpoint.hub")


def device_of(asked: str, tell: Callable[[str], None]) -> str:
    """Returns the device for ``--device`` and prints it. Needs torch.

    Raises:
        ValueError: there is no such device.
    """
    from draftwire_core.engine.device.choices import device_here

    chosen = device_here(asked)
    tell(f"device: {chosen.about}")
    return chosen.device
