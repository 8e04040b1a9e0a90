"""``draftwire train``: training of what drafts."""

from draftwire.cli.train.app import train

__all__ = ["train"]
