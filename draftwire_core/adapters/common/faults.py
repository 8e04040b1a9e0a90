"""The faults of an adapter: steps that were made without drafts because drafting failed."""

from __future__ import annotations

from collections import Counter

from draftwire_core.runtime.process.logs import get_logger

log = get_logger(__name__)


class Faults(Counter[str]):
    """Number of faults by exception name."""

    def note(self, error: Exception) -> None:
        """Counts an exception; logs the first of each name with its traceback."""
        name = type(error).__name__
        self[name] += 1
        if self[name] == 1:
            log.error("drafting failed; the host engine goes on plainly", fault=name, exc_info=error)
