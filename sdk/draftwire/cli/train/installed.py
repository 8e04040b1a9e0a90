"""What the training commands need beside the SDK."""

from __future__ import annotations

import importlib.util

from draftwire.cli.failure import Failure

NEEDED = ("torch", "transformers", "draft_training")


def check_installed() -> None:
    """Check that models can be trained here.

    Raises:
        Failure: something is not installed.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise Failure(
            f"training needs {', '.join(missing)}: pip install 'draftwire[serve]', or pip install -e '.[serve]' in a "
            "checkout"
        )
