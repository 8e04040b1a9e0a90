"""``draftwire train``: trains what drafts, on this machine."""

from __future__ import annotations

import typer

from draftwire.cli.train.medusa import medusa

train = typer.Typer(help="Train drafters for a target model.", no_args_is_help=True)
train.command()(medusa)

__all__ = ["train"]
