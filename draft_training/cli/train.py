"""The training commands."""

from __future__ import annotations

import typer

from draft_training.cli.distill import distill
from draft_training.cli.medusa import medusa
from draft_training.cli.refresh import refresh

train = typer.Typer(help="Train draft models and Medusa heads.", no_args_is_help=True)
train.command()(distill)
train.command()(medusa)
train.command()(refresh)
