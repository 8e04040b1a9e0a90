"""The live view on a terminal."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live

from draftwire_tools.top.keyboard import keys_pressed
from draftwire_tools.top.snapshot import ORDERS
from draftwire_tools.top.view import Layout, lines
from draftwire_tools.top.watch import Watch

INTERVALS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds between readings that the keys + and - go through."""
_SIGNALS = ("SIGTERM", "SIGHUP")
_COLUMNS, _LINES = 80, 24
"""Size of a terminal that reports none, as serial consoles do."""


class Screen:
    """Renders the live view and handles key presses."""

    def __init__(self, console: Console, watch: Watch) -> None:
        """Draws on a console that is a terminal."""
        self._console = console
        self._watch = watch
        self._snapshot = watch.snapshot()
        self._layout = Layout(interval=watch.interval)
        self._ended = asyncio.Event()
        self._hurry = asyncio.Event()
        self._live: Live | None = None

    async def run(self) -> None:
        """Shows the watch until a key, or a signal, ends it."""
        loop = asyncio.get_running_loop()
        resized = getattr(signal, "SIGWINCH", None)  # not on Windows
        ends = [getattr(signal, name) for name in _SIGNALS if resized is not None and hasattr(signal, name)]
        with keys_pressed(self.press) as keys, Live(console=self._console, screen=True, auto_refresh=False) as live:
            self._live = live
            self._layout = replace(self._layout, keys=keys)
            if resized is not None:
                loop.add_signal_handler(resized, self._draw)
            for number in ends:
                loop.add_signal_handler(number, self._ended.set)
            self._draw()
            try:
                await self._read_until_ended()
            finally:
                for number in [*ends, *([resized] if resized is not None else ())]:
                    loop.remove_signal_handler(number)

    def press(self, key: str) -> None:
        """Handles a key; unknown keys are ignored."""
        layout = self._layout
        if key in ("q", "Q"):
            self._ended.set()
        elif key in ("p", "P", " "):
            self._layout = replace(layout, paused=not layout.paused)
            if layout.paused:
                self._snapshot = self._watch.snapshot()
        elif key in ("s", "S"):
            orders = list(ORDERS)
            self._layout = replace(layout, order=orders[(orders.index(layout.order) + 1) % len(orders)])
        elif key == "+":
            self._change_interval(next((each for each in INTERVALS if each > layout.interval), layout.interval))
        elif key == "-":
            shorter = (each for each in reversed(INTERVALS) if each < layout.interval)
            self._change_interval(next(shorter, layout.interval))
        self._draw()

    def _change_interval(self, seconds: float) -> None:
        self._watch.interval = seconds
        self._layout = replace(self._layout, interval=seconds)
        self._hurry.set()

    async def _read_until_ended(self) -> None:
        while not self._ended.is_set():
            reading = asyncio.create_task(self._watch.read())
            ending = asyncio.create_task(self._ended.wait())
            try:
                await asyncio.wait((reading, ending), return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    return
                snapshot = reading.result()
                if not self._layout.paused:
                    self._snapshot = snapshot
                    self._draw()
                await self._pause()
            finally:
                for task in (reading, ending):
                    task.cancel()
                await asyncio.wait((reading, ending))

    async def _pause(self) -> None:
        """Waits for the next reading; a change of the interval, or the end, cuts it short."""
        self._hurry.clear()
        waits = [asyncio.create_task(event.wait()) for event in (self._hurry, self._ended)]
        try:
            await asyncio.wait(waits, timeout=self._watch.interval, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.wait(waits)

    def _draw(self) -> None:
        if self._live is None:
            return
        # The terminal's own size: rich prefers COLUMNS and LINES, which do not follow a resize.
        size = os.get_terminal_size(self._console.file.fileno())
        width, height = size.columns or _COLUMNS, size.lines or _LINES
        self._console.size = ConsoleDimensions(width, height)
        layout = replace(self._layout, width=width, height=height)
        self._live.update(Group(*lines(self._snapshot, layout)), refresh=True)
