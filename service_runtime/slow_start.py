"""What takes seconds to start and to end, beside the event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TypeVar

from service_runtime.startup_error import startup_errors

Part = TypeVar("Part")


@asynccontextmanager
async def started(part: AbstractContextManager[Part], *kinds: type[Exception]) -> AsyncIterator[Part]:
    """Enters a context, and leaves it, in threads.

    Raises StartupError for an error of these kinds at its start.
    """
    with startup_errors(*kinds):
        value = await asyncio.to_thread(part.__enter__)
    try:
        yield value
    finally:
        await asyncio.to_thread(part.__exit__, None, None, None)
