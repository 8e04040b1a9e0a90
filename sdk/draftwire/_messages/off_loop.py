"""Encoding off the event loop of what takes long: conversations of many messages, prompts of many token ids."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

MANY_IDS = 16384
"""Most token ids that are encoded on an event loop, where they take a few milliseconds."""
_MANY_MESSAGES = 256
"""Most messages that are, likewise."""

MadeT = TypeVar("MadeT")


async def off_loop(make: Callable[[Any], MadeT], values: Any, many: int = _MANY_MESSAGES) -> MadeT:
    """Returns what ``make`` makes of values, messages or token ids; a thread calls it if they are many.

    Args:
        make: encodes the values.
        values: values, which the caller may change meanwhile; or a text, or what ``make`` refuses.
        many: most values that are encoded on the event loop.
    """
    if isinstance(values, list | Iterator):
        values = list(values)
    if isinstance(values, str | bytes | Mapping) or operator.length_hint(values) <= many:
        return make(values)
    return await asyncio.to_thread(make, values)
