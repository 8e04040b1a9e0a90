"""The command line: ``draftwire generate | drafters | bench | demo``."""

from draftwire.cli.app import main

__all__ = ["main"]
