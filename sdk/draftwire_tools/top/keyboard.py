"""Reader of single key presses."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ESCAPE = "\x1b"


@contextmanager
def keys_pressed(take: Callable[[str], object]) -> Iterator[bool]:
    """Calls ``take`` with each key pressed within the ``with`` block, on the running event loop.

    Yields whether keys can be read: only at a terminal, and not on Windows. Keys are neither echoed nor line-buffered.
    Ctrl-C works as usual. Arrow keys and the like are ignored.
    """
    try:
        import termios
        import tty
    except ImportError:  # not on Windows
        yield False
        return
    if not sys.stdin.isatty():
        yield False
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        pressed = os.read(descriptor, 64).decode(errors="replace")
        if not pressed:  # the terminal is gone
            loop.remove_reader(descriptor)
        if not pressed.startswith(_ESCAPE):
            for key in pressed:
                take(key)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield True
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
