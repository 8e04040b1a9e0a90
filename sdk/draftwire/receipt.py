"""The receipt of a request: initial metadata that a verifier sends as soon as it has a request, before it reads it.

A stream that breaks may never have reached its verifier, or may be what ended it; the receipt tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

RECEIPT = (("draftwire-receipt", "1"),)
"""The initial metadata of Generate and Verify."""


def has_receipt(metadata: Iterable[tuple[str, Any]] | None) -> bool:
    """Return whether a call's initial metadata say that a verifier has the request."""
    return any(key == RECEIPT[0][0] for key, _ in metadata or ())
