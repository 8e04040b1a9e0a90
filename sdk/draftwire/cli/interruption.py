"""Commands that signals interrupt, which then clean up as they do at their end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine like `asyncio.run`. SIGTERM cancels it as Ctrl-C does, so that it detaches what it attached.

    Raises:
        KeyboardInterrupt: a signal ended it.
    """

    async def interruptible() -> T:
        task = asyncio.current_task()
        assert task is not None
        with contextlib.suppress(NotImplementedError):  # on Windows, which has no SIGTERM to handle
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await main

    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
