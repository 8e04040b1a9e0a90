"""The clocks of the drafter pool."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class DrafterClocks:
    """The pool's sources of time, in seconds with any origin; tests replace them."""

    now: Callable[[], float] = _loop_time
    """Elapsed time."""
    spent: Callable[[], float] = time.thread_time
    """CPU time of the calling thread."""
