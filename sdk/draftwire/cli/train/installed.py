"""What the training commands need beside the SDK."""

from __future__ import annotations

from draftwire.cli.installed import check_installed

NEEDED = ("torch", "transformers", "draft_training")


def check_training_installed() -> None:
    """Check that models can be trained here.

    Raises:
        Failure: something is not installed.
    """
    check_installed("training", NEEDED)
