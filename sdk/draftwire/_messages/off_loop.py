"""Work off the event loop: encoding large requests and reading large responses, which take longer than it may."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, TypeVar

_LARGE = 16384
"""Size from which values are large, in token ids: a few milliseconds of work."""
_TEXT = 64
"""Characters of a text that are as much work as a token id."""
_BYTES = 16
"""Bytes of an encoded message that are as much work as a token id; each of them may be a token id in the message."""
_MAPPING = 64
"""The work on a message of a conversation, in token ids."""

MadeT = TypeVar("MadeT")


async def off_loop(make: Callable[[], MadeT], *, large: bool) -> MadeT:
    """Returns what ``make`` returns, called by a thread if it works on large values."""
    return await asyncio.to_thread(make) if large else make()


def is_large(*values: Any) -> bool:
    """Returns whether it would hold up an event loop to encode values: texts, token ids, conversations, options, or a
    ``partial`` of them.

    Looks at as few of them as that takes.
    """
    waiting = list(values)
    room = _LARGE
    while waiting and room > 0:
        value = waiting.pop()
        room -= 1
        if isinstance(value, str):
            room -= len(value) // _TEXT
        elif isinstance(value, bytes):
            room -= len(value) // _BYTES
        elif isinstance(value, partial):
            waiting += [*value.args, *value.keywords.values()]
        elif is_dataclass(value):
            waiting += [getattr(value, field.name) for field in fields(value)]
        elif isinstance(value, Mapping):
            room -= _MAPPING
            waiting += list(value.values())[:room] if room > 0 else ()
        elif isinstance(value, list | tuple) and not isinstance(next(iter(value), None), int):
            waiting += value[: max(room, 0)]
        else:
            room -= operator.length_hint(value)
    return room <= 0


def kept(values: Any) -> Any:
    """Returns values that their caller neither changes nor uses up until they are encoded."""
    return list(values) if isinstance(values, list | Iterator) else values
