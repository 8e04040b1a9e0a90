"""The demo on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftwire._types.generation import Chunk
from draftwire_tools.demo.story import DemoReport
from draftwire_tools.loading import bars

OWN_STYLE = "default"
EVENT_STYLE = "black on yellow"
STYLES = ("bold cyan", "bold green", "bold blue")
"""Styles of drafters, in their order."""
YES, NO = Text("yes", "bold green"), Text("no", "bold red")


class Terminal:
    """Draws the tokens as they arrive, in the colours of their sources."""

    def __init__(self, console: Console, drafters: Sequence[str]) -> None:
        """Draws on a console. drafters: names for the legend, at most three."""
        self._console = console
        self._styles = dict(zip(drafters, STYLES, strict=False))
        self._within_line = False

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Draws a bar that is full when the context ends."""
        self._end_line()
        with bars(self._console) as drawn:
            task = drawn.add_task(text, total=None)
            yield
            drawn.update(task, total=1, completed=1)

    @contextmanager
    def plain(self, title: str, tokens: int) -> Iterator[Callable[[int], None]]:
        """Draws a bar while the request without drafters runs."""
        with bars(self._console) as drawn:
            task = drawn.add_task(f"decoding the {title} plainly, for comparison", total=tokens)
            yield lambda count: drawn.advance(task, count)
            drawn.update(task, total=1, completed=1)  # it may end before its most tokens

    def begin(self, prompt: str) -> None:
        """Draws the legend and the prompt."""
        legend = Text.assemble("accepted draft tokens of ")
        for index, (name, style) in enumerate(self._styles.items()):
            legend.append(", " if index else "").append(name, style)
        legend.append("; all others are the target's own")
        self._console.print()
        self._console.print(legend, soft_wrap=True)
        self._console.print()
        self._write(prompt, "dim")

    def chunk(self, chunk: Chunk) -> None:
        """Draws the tokens of a chunk."""
        for text, source in zip(chunk.token_texts, chunk.sources, strict=True):
            self._write(text, OWN_STYLE if source is None else self._styles.get(source, "magenta"))

    def event(self, text: str) -> None:
        """Draws a mark in the text; where the text goes to a file or a pipe, on stderr, so that it stays whole."""
        if self._console.is_terminal:
            self._write(f" {text} ", EVENT_STYLE)
        else:
            print(f"draftwire demo: {text}", file=sys.stderr, flush=True)

    def report(self, report: DemoReport) -> None:
        """Draws the table at the end: a column for each scene."""
        scenes = report.scenes
        table = Table(title=report.model, title_justify="left", show_header=len(scenes) > 1)
        table.add_column()
        for scene in scenes:
            table.add_column(scene.title, justify="right")

        def row(name: str | Text, cells: Iterable[str | Text]) -> None:
            table.add_row(name, *cells)

        stats = [scene.drafted.speculation for scene in scenes]
        row("tokens", (str(len(scene.drafted.token_ids)) for scene in scenes))
        row("steps of the target", (str(each.steps) for each in stats))
        row("acceptance rate", (f"{each.acceptance_rate:.0%}" for each in stats))
        shares = [{share.name: share for share in each.drafters} for each in stats]
        for name in dict.fromkeys(name for found in shares for name in found):
            cells = [
                f"{found[name].acceptance_rate:.0%} of {found[name].draft_tokens}" if name in found else ""
                for found in shares
            ]
            row(Text("  ").append(name, self._styles.get(name, "")), cells)
        row("acceptance length", (f"{each.acceptance_length:.2f} tokens per step" for each in stats))
        row("time, plain decoding", (_time(scene.plain_seconds, len(scene.plain.token_ids)) for scene in scenes))
        row("time, with drafters", (_time(scene.seconds, len(scene.drafted.token_ids)) for scene in scenes))
        row("speed-up", (f"{scene.speed_up:.2f}x" for scene in scenes))
        row("identical to plain decoding", (YES if scene.identical else NO for scene in scenes))
        self._end_line()
        self._console.print(table)
        self._console.print(f"swaps: {report.swaps}, kills: {report.kills}")

    def _write(self, text: str, style: str) -> None:
        self._console.out(text, style=style, end="", highlight=False)
        self._within_line = True

    def _end_line(self) -> None:
        """Ends the text of a scene."""
        if self._within_line:
            self._console.print("\n")
            self._within_line = False


def _time(seconds: float, tokens: int) -> str:
    rate = f", {tokens / seconds:.0f} tokens/s" if seconds else ""
    return f"{seconds:.2f} s{rate}"
