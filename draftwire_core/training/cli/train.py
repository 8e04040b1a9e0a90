"""The training commands."""

from __future__ import annotations

import typer

from draftwire_core.training.cli.distill import distill
from draftwire_core.training.cli.frozen_target import dflash, eagle3, medusa
from draftwire_core.training.cli.learn import learn
from draftwire_core.training.cli.refresh import refresh

train = typer.Typer(help="Train draft models, EAGLE-3 and DFlash drafters, and Medusa heads.", no_args_is_help=True)
train.command()(dflash)
train.command()(distill)
train.command()(eagle3)
train.command()(learn)
train.command()(medusa)
train.command()(refresh)
