"""The training commands."""

from __future__ import annotations

import typer

from draftwire.cli.train.distill import distill
from draftwire.cli.train.medusa import medusa
from draftwire.cli.train.refresh import refresh

train = typer.Typer(help="Train what drafts.", no_args_is_help=True)
train.command()(distill)
train.command()(medusa)
train.command()(refresh)
