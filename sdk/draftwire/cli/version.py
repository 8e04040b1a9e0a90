"""``draftwire version``."""

from __future__ import annotations

import draftwire.version


def version() -> None:
    """Print the version."""
    print(draftwire.version.__version__)
