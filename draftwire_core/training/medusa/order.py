"""The order of a training of Medusa heads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from draftwire_core.training.frozen_target.order import TrainingOrder


@dataclass(frozen=True, slots=True)
class MedusaOrder(TrainingOrder):
    """Options of a training; see `draftwire train medusa`."""

    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the heads. An interrupted training resumes there.")
    ]
    heads: Annotated[int, typer.Option(min=1, max=64, help="Number of heads: tokens guessed ahead.")] = 4
    layers: Annotated[int, typer.Option(min=0, max=16, help="Residual blocks per head.")] = 1
