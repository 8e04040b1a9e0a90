"""The clocks of the pool of drafters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class DrafterClocks:
    """Where the pool gets its times from, in seconds from any start; a test puts its own in their place."""

    now: Callable[[], float] = _loop_time
    """Time that passes."""
    spent: Callable[[], float] = time.thread_time
    """Processor time of the calling thread."""
