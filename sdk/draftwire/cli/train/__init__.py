"""``draftwire train``: trains what drafts, on this machine."""

from draftwire.cli.train.app import train

__all__ = ["train"]
